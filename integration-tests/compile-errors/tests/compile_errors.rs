//! What the compiler says when a handler is wrong. The texts are part of the interface.

#[test]
fn compile_errors_say_what_to_do() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/cases/handlers_that_fit.rs");
    cases.compile_fail("tests/cases/unclassified_question_mark.rs");
    cases.compile_fail("tests/cases/bare_handler.rs");
}
