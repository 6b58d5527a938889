//! The figures as bars, one file each.

use crate::report::Row;
use std::fmt::Write;
use std::path::Path;

const BAR: usize = 22;
const LEFT: usize = 190;
const WIDTH: usize = 760;

pub fn draw(dir: &Path, rows: &[Row]) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut at = 0;
    while at < rows.len() {
        let n = rows[at..].iter().take_while(|r| r.figure == rows[at].figure).count();
        let group = &rows[at..at + n];
        at += n;
        let name: String = group[0]
            .figure
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect();
        std::fs::write(dir.join(format!("{name}.svg")), bars(group))?;
    }
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Ours first, then every peer; lengths are linear, up to ten times ours.
fn bars(rows: &[Row]) -> String {
    let first = &rows[0];
    let mut all = vec![("slackwheel", first.ours, true)];
    all.extend(
        rows.iter().filter(|r| r.peer != "-").map(|r| (r.peer.as_str(), r.peer_value, false)),
    );
    let largest = all.iter().map(|b| b.1).fold(0.0, f64::max);
    let full = if first.ours > 0.0 { largest.min(first.ours * 10.0) } else { largest }.max(1e-9);
    let height = 40 + all.len() * (BAR + 6) + 10;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\"><rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/><text x=\"10\" y=\"24\" font-weight=\"bold\">{} ({})</text>",
        escaped(&first.figure),
        escaped(first.unit)
    );
    for (n, (name, value, own)) in all.iter().enumerate() {
        let y = 40 + n * (BAR + 6);
        let room = (WIDTH - LEFT - 110) as f64;
        let length = (value / full).clamp(0.0, 1.0) * room;
        let cut = if *value > full { " (cut)" } else { "" };
        let fill = if *own { "#2a7f62" } else { "#9aa5b1" };
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{LEFT}\" y=\"{y}\" \
             width=\"{length:.1}\" height=\"{BAR}\" fill=\"{fill}\"/><text x=\"{:.1}\" y=\"{}\">\
             {value:.4}{cut}</text>",
            LEFT - 8,
            y + 16,
            escaped(name),
            LEFT as f64 + length + 6.0,
            y + 16
        );
    }
    out.push_str("</svg>\n");
    out
}
