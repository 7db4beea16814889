use oncemq_core::{Context, Failure, Message};

#[derive(Debug)]
struct PartnerError;

impl std::fmt::Display for PartnerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the partner said no")
    }
}

impl std::error::Error for PartnerError {}

fn call_partner() -> Result<(), PartnerError> {
    Err(PartnerError)
}

async fn handler(_cx: Context, _message: Message) -> Result<(), Failure> {
    call_partner()?;
    Ok(())
}

fn main() {
    let _ = handler;
}
