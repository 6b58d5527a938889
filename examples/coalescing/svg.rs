//! The picture: for each slack the mix round, each window a bar, each wakeup a vertical line.
//!
//! Bars are stacked in as few lanes as possible, so how high they stand is how many windows are open at
//! once. Colours are from the Okabe-Ito palette, which colour-blind readers can tell apart; the lines
//! differ in dash, too.

use crate::args::{ClockKind, Slack};
use crate::optimum::optimum;
use crate::run::{Cause, Run};
use crate::workload::Plan;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

const WIDTH: i32 = 1400;
const HEAD: i32 = 104;
const PANEL: i32 = 172;
/// Between two panels.
const GAP: i32 = 14;
const FOOT: i32 = 52;
const LEFT: i32 = 190;
const RIGHT: i32 = 24;
/// A lane is at most so high: few windows should not become blocks.
const LANE: f64 = 9.0;
/// Above the bars: there the lines are seen alone.
const HEADROOM: i32 = 26;
/// So many wakeups are drawn as strong lines.
const FEW: usize = 150;
/// More bars than this are a smear: of more windows every so many-th is drawn.
const BARS: usize = 2_000;

const WINDOW: RGBColor = RGBColor(86, 180, 233);
/// Of every other lane.
const SHADE: RGBColor = RGBColor(134, 203, 241);
const EXACT: RGBColor = RGBColor(0, 158, 115);
const FORCED: RGBColor = RGBColor(213, 94, 0);
const OUTSIDE: RGBColor = RGBColor(0, 40, 90);
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(225, 225, 225);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

struct Bar {
    /// Seconds since the round's start.
    from: f64,
    to: f64,
    lane: usize,
}

/// One slack's mix.
pub(crate) struct Panel {
    slack: Slack,
    bars: Vec<Bar>,
    lanes: usize,
    every: usize,
    wakeups: Vec<(f64, Cause)>,
    timers: usize,
    optimum: usize,
}

impl Panel {
    pub(crate) fn new(slack: Slack, plan: &Plan, run: &Run) -> Panel {
        let round = plan.rounds.len() - 1;
        let start = run.starts[round];
        let seconds = |ns: u64| (ns as f64 - start as f64) / 1e9;
        let windows: Vec<_> = run.windows.iter().filter(|w| w.round == round).cloned().collect();
        let of_round = || run.wakeups.iter().filter(|w| w.round == round);
        let free: Vec<u64> =
            of_round().filter(|w| w.cause == Cause::Outside).map(|w| w.at).collect();
        let every = windows.len().div_ceil(BARS);
        let mut bars: Vec<Bar> = windows
            .iter()
            .step_by(every)
            .map(|w| Bar { from: seconds(w.earliest), to: seconds(w.latest), lane: 0 })
            .collect();
        let lanes = stack(&mut bars, 2e-3 * plan.round_ns as f64 / 1e9);
        Panel {
            slack,
            bars,
            lanes,
            every,
            wakeups: of_round().map(|w| (seconds(w.at), w.cause)).collect(),
            timers: windows.len(),
            optimum: optimum(&windows, &free),
        }
    }

    fn count(&self, outside: bool) -> usize {
        self.wakeups.iter().filter(|(_, cause)| (*cause == Cause::Outside) == outside).count()
    }

    fn end(&self) -> f64 {
        let ends = self.bars.iter().map(|b| b.to).chain(self.wakeups.iter().map(|(at, _)| *at));
        ends.fold(0.0, f64::max)
    }
}

/// Puts each bar in the lowest lane where it keeps a `gap` to the one before. Returns the lanes used.
fn stack(bars: &mut [Bar], gap: f64) -> usize {
    bars.sort_by(|a, b| a.from.total_cmp(&b.from));
    let mut ends: Vec<f64> = Vec::new();
    for bar in bars {
        bar.lane = ends.iter().position(|end| *end <= bar.from).unwrap_or_else(|| {
            ends.push(0.0);
            ends.len() - 1
        });
        ends[bar.lane] = bar.to + gap;
    }
    ends.len()
}

/// What the head of the picture says.
pub(crate) struct About {
    pub(crate) clock: ClockKind,
    pub(crate) seed: u64,
}

pub(crate) fn draw(path: &Path, about: &About, panels: &[Panel]) -> Drawn {
    let height = HEAD + panels.len() as i32 * (PANEL + GAP) + FOOT;
    let root = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    head(&root, about, panels)?;
    let end = panels.iter().map(Panel::end).fold(0.0, f64::max) * 1.01;
    let scale = Scale { end };
    let bottom = height - FOOT - GAP;
    for (i, panel) in panels.iter().enumerate() {
        draw_panel(&root, &scale, panel, HEAD + i as i32 * (PANEL + GAP))?;
    }
    axis(&root, &scale, bottom)?;
    root.present()?;
    Ok(())
}

struct Scale {
    end: f64,
}

impl Scale {
    fn x(&self, seconds: f64) -> i32 {
        LEFT + (seconds.max(0.0) / self.end * (WIDTH - LEFT - RIGHT) as f64).round() as i32
    }

    /// Where the axis is labelled: a round number of seconds apart.
    fn ticks(&self) -> Vec<f64> {
        let rough = self.end / 12.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough);
        let step = step.unwrap_or(unit);
        (0..).map(|i| i as f64 * step).take_while(|t| *t <= self.end).collect()
    }
}

fn head(root: &Area, about: &About, panels: &[Panel]) -> Drawn {
    let timers = panels.first().map_or(0, |p| p.timers);
    let title = format!("{} timers, and the wakeups that served them", thousands(timers));
    text(root, &title, 26, (LEFT, 30), HPos::Left, true)?;
    let clock = match about.clock {
        ClockKind::Real => "the real clock",
        ClockKind::Manual => "a manual clock",
    };
    let what = format!(
        "The last of four rounds: the same timers with more and more slack, brought over time by two \
         threads, on {clock}. Bars stand as high as windows are open at once."
    );
    text(root, &what, 15, (LEFT, 56), HPos::Left, false)?;

    let y = 82;
    let mut x = LEFT;
    root.draw(&Rectangle::new([(x, y - 4), (x + 26, y + 4)], WINDOW.filled()))?;
    text(root, "a window: earliest to latest", 14, (x + 34, y), HPos::Left, false)?;
    x += 235;
    root.draw(&Rectangle::new([(x + 42, y - 5), (x + 46, y + 5)], EXACT.filled()))?;
    text(root, "an exact timer", 14, (x + 54, y), HPos::Left, false)?;
    x += 180;
    line(root, (x + 13, y - 9), y + 9, false, 2)?;
    text(root, "a wakeup that a window forced", 14, (x + 24, y), HPos::Left, false)?;
    x += 250;
    line(root, (x + 13, y - 9), y + 9, true, 1)?;
    text(root, "a wakeup from outside: free", 14, (x + 24, y), HPos::Left, false)?;
    text(root, &format!("seed {}", about.seed), 14, (WIDTH - RIGHT, y), HPos::Right, false)
}

fn draw_panel(root: &Area, scale: &Scale, panel: &Panel, top: i32) -> Drawn {
    let bottom = top + PANEL;
    for tick in scale.ticks() {
        let x = scale.x(tick);
        root.draw(&PathElement::new(vec![(x, top), (x, bottom)], FAINT))?;
    }
    // Lines through narrow bars would hide them, wide bars would hide the lines.
    let narrow = panel.bars.iter().all(|b| scale.x(b.to) - scale.x(b.from) < 5);
    if narrow {
        draw_wakeups(root, scale, panel, top)?;
    }
    draw_bars(root, scale, panel, bottom, false)?;
    if !narrow {
        draw_wakeups(root, scale, panel, top)?;
    }
    // An exact timer lies on its wakeup's line.
    draw_bars(root, scale, panel, bottom, true)?;
    root.draw(&PathElement::new(vec![(LEFT, bottom), (WIDTH - RIGHT, bottom)], INK))?;
    labels(root, panel, top)
}

fn draw_bars(root: &Area, scale: &Scale, panel: &Panel, bottom: i32, exact: bool) -> Drawn {
    let lane = ((PANEL - HEADROOM) as f64 / panel.lanes.max(1) as f64).min(LANE);
    let y = |lanes: usize| bottom - (lane * lanes as f64).round() as i32;
    // High lanes have a line of white between them; low ones are told apart by their shade.
    let high = lane >= 4.0;
    for bar in panel.bars.iter().filter(|b| (b.to == b.from) == exact) {
        let (x0, x1) = (scale.x(bar.from), scale.x(bar.to));
        let (y0, y1) = (y(bar.lane + 1) + i32::from(high), y(bar.lane));
        let (corners, colour) = match (exact, high) {
            // Never small: among wide windows it would be lost.
            (true, false) => ([(x0 - 4, y1 - 9), (x0 + 4, y1)], EXACT),
            (true, true) => ([(x0 - 1, y0), (x0 + 1, y1)], EXACT),
            (false, false) if bar.lane % 2 == 1 => ([(x0, y0), (x1.max(x0 + 2), y1)], SHADE),
            (false, _) => ([(x0, y0), (x1.max(x0 + 2), y1)], WINDOW),
        };
        root.draw(&Rectangle::new(corners, colour.filled()))?;
    }
    Ok(())
}

fn draw_wakeups(root: &Area, scale: &Scale, panel: &Panel, top: i32) -> Drawn {
    // Few lines may be strong.
    let width = if panel.count(false) <= FEW { 2 } else { 1 };
    for outside in [false, true] {
        let mut last = None;
        for (at, _) in panel.wakeups.iter().filter(|w| (w.1 == Cause::Outside) == outside) {
            let x = scale.x(*at);
            // Two lines on one pixel look like one.
            if last != Some(x) {
                line(root, (x, top), top + PANEL, outside, width)?;
            }
            last = Some(x);
        }
    }
    Ok(())
}

fn labels(root: &Area, panel: &Panel, top: i32) -> Drawn {
    let x = LEFT - 18;
    let slack = match panel.slack {
        Slack::Mixed => "mixed".into(),
        slack => format!("slack {slack}"),
    };
    text(root, &slack, 22, (x, top + 18), HPos::Right, true)?;
    let forced = panel.count(false);
    let mut y = top + 48;
    let mut say = |words: String, size, bold| {
        let drawn = text(root, &words, size, (x, y), HPos::Right, bold);
        y += size + 6;
        drawn
    };
    if panel.slack == Slack::Mixed {
        say("1 % exact, 99 % with 50 ms".into(), 13, false)?;
    }
    say(format!("{} timers", thousands(panel.timers)), 15, false)?;
    say(format!("{} forced wakeups", thousands(forced)), 15, true)?;
    say(format!("optimum {}", thousands(panel.optimum)), 15, false)?;
    say(format!("{} from outside", thousands(panel.count(true))), 15, false)?;
    if panel.every > 1 {
        say(format!("1 window in {} drawn", panel.every), 13, false)?;
    }
    Ok(())
}

fn axis(root: &Area, scale: &Scale, bottom: i32) -> Drawn {
    for tick in scale.ticks() {
        let x = scale.x(tick);
        root.draw(&PathElement::new(vec![(x, bottom), (x, bottom + 6)], INK))?;
        // As many digits as the step has.
        let label = format!("{:.3}", tick);
        let label = label.trim_end_matches('0').trim_end_matches('.').to_owned();
        text(root, &label, 14, (x, bottom + 17), HPos::Center, false)?;
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2;
    text(root, "seconds since the round began", 15, (middle, bottom + 40), HPos::Center, false)
}

fn line(root: &Area, from: (i32, i32), to: i32, outside: bool, width: u32) -> Drawn {
    let path = |a, b, style: ShapeStyle| PathElement::new(vec![(from.0, a), (from.0, b)], style);
    if !outside {
        root.draw(&path(from.1, to, FORCED.stroke_width(width)))?;
        return Ok(());
    }
    let mut y = from.1;
    while y < to {
        root.draw(&path(y, (y + 5).min(to), OUTSIDE.stroke_width(1)))?;
        y += 9;
    }
    Ok(())
}

fn text(root: &Area, words: &str, size: i32, at: (i32, i32), h: HPos, bold: bool) -> Drawn {
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let font = FontDesc::new(FontFamily::SansSerif, f64::from(size), style);
    let style = TextStyle::from(font).color(&INK).pos(Pos::new(h, VPos::Center));
    root.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

/// `12,345`.
fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_in_a_lane_do_not_touch() {
        let bar = |from, to| Bar { from, to, lane: 9 };
        let mut bars = vec![bar(5.0, 6.0), bar(0.0, 2.0), bar(1.0, 3.0), bar(3.0, 4.0)];
        assert_eq!(stack(&mut bars, 0.5), 2);
        assert_eq!(bars.iter().map(|b| b.lane).collect::<Vec<_>>(), [0, 1, 0, 0]);
    }

    #[test]
    fn digits_come_in_threes() {
        let shown = [0, 999, 1000, 1_234_567].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
