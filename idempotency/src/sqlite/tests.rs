use super::*;

#[test]
fn er1_result_codes_decide() {
    // Errors of the driver itself; those of the database are raised in tests on a file.
    for (error, trouble) in [
        (sqlx::Error::PoolTimedOut, Trouble::Broken),
        (sqlx::Error::WorkerCrashed, Trouble::Broken),
        (sqlx::Error::RowNotFound, Trouble::Harmless),
        (sqlx::Error::Io(std::io::Error::other("x")), Trouble::Broken),
    ] {
        assert_eq!(judge(&error), trouble, "{error}");
    }
}
