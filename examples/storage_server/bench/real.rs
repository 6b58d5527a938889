//! stub
use super::plan::*;
pub(crate) fn run(
    _: &SlackArgs,
    _: &NamedDevice,
    _: Workload,
    _: usize,
    _: Variant,
) -> Result<Row, String> {
    Err("x".into())
}
