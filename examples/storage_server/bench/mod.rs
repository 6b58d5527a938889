//! Measuring what slack costs and buys.
//!
//! | file | lesson |
//! | --- | --- |
//! | [`plan`] | what is run: devices, workloads, policies |
//! | [`simulate`] | the server on a virtual clock |
//! | [`real`] | the server's own storage on a real file |
//! | [`report`] | table, JSON, picture |

pub(crate) mod plan;
pub(crate) mod real;
pub(crate) mod report;
pub(crate) mod simulate;

use clap::Subcommand;

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Group commit with slack 500 us, 100 us, slack = resolution, and adaptive
    Slack(Box<plan::SlackArgs>),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), String> {
        match self {
            Self::Slack(args) => {
                let rows = args.run()?;
                report::emit(&rows, &args)
            }
        }
    }
}
