//! stub
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Slack,
}
impl Bench {
    pub(crate) fn run(self) -> Result<(), String> {
        Ok(())
    }
}
