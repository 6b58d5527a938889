#!/usr/bin/env python3
"""Recomputes the figures of the coalescing demo from what it dumped, and fails where they disagree.

    cargo run --release --example coalescing -- --json --dump DUMP > JSON
    python3 tests/recompute_optimum.py DUMP JSON [--promises]

Recomputed for each slack: timers, fired, wakeups, outside_wakeups, at_once, early, missed, optimum, ratio.
With --promises the figures must also be as good as the crate promises on that clock.

The optimum is the least number of instants such that every window holds one of them, where a window
that is open when it registers needs none and wakeups from outside are instants one has anyway. The demo
finds it by placing instants greedily. Here it is found from the other side: windows that do not overlap
need an instant each, and on a line the largest such set is as large as the least set of instants. That
set is found by dynamic programming, and compared with an exhaustive search on small random inputs first.

Needs nothing but the standard library. Exit status: 0 agreement, 1 disagreement, 2 wrong usage or input.
"""

import itertools
import json
import math
import random
import sys
from bisect import bisect_left

RATIO_REAL = 1.02  # from a slack of 1 ms on
ARMS_A_ROUND = 10  # beside one a wakeup, for a thousand timers
MS = 1_000_000


def in_need(windows, free):
    """The windows (registered, earliest, latest) that nothing serves for free, as (earliest, latest)."""
    rest = []
    for registered, earliest, latest in windows:
        if earliest <= registered:
            continue
        if any(earliest <= at <= latest for at in candidates(free, earliest)):
            continue
        rest.append((earliest, latest))
    return rest


def candidates(free, earliest):
    """The first of the sorted instants that is not before `earliest`, if any: later ones hit no more."""
    i = bisect_left(free, earliest)
    return free[i : i + 1]


def least_points(spans):
    """The size of the largest set of spans of which no two share an instant."""
    spans = sorted(spans, key=lambda span: span[1])
    ends = [latest for _, latest in spans]
    best = [0]  # best[i]: among the i spans that end first
    for i, (earliest, _) in enumerate(spans):
        ended = bisect_left(ends, earliest)  # those that end before this one starts
        best.append(max(best[i], best[min(ended, i)] + 1))
    return best[-1]


def least_points_by_search(spans):
    """Tries all sets of instants, smallest first. An instant may always be moved to some span's end."""
    ends = sorted({latest for _, latest in spans})
    for size in range(len(ends) + 1):
        for points in itertools.combinations(ends, size):
            if all(any(e <= p <= l for p in points) for e, l in spans):
                return size
    raise AssertionError("the set of all ends holds an instant of every span")


def check_the_method():
    rng = random.Random(20)
    for _ in range(2000):
        windows = []
        for _ in range(rng.randrange(8)):
            earliest = rng.randrange(30)
            windows.append((rng.randrange(12), earliest, earliest + rng.choice([0, 1, 3, 10])))
        free = sorted(rng.randrange(40) for _ in range(rng.randrange(3)))
        spans = in_need(windows, free)
        slow = [
            (e, l)
            for r, e, l in windows
            if r < e and not any(e <= at <= l for at in free)
        ]
        assert spans == slow, (windows, free)
        assert least_points(spans) == least_points_by_search(spans), spans


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def runs_of(dump):
    """The dump, cut where a slack's run begins."""
    runs = []
    for line in dump:
        if line["kind"] == "run":
            runs.append((line, [], []))
        elif line["kind"] == "window":
            runs[-1][1].append(line)
        elif line["kind"] == "wakeup":
            runs[-1][2].append(line)
        else:
            raise ValueError(f"unknown kind {line['kind']!r}")
        if line["slack_ns"] != runs[-1][0]["slack_ns"]:
            raise ValueError(f"a line of another run: {line}")
    return runs


def recompute(windows, wakeups):
    free = sorted(w["at_ns"] for w in wakeups if w["cause"] == "outside")
    spans = in_need([(w["registered_ns"], w["earliest_ns"], w["latest_ns"]) for w in windows], free)
    optimum = least_points(spans)
    forced = len(wakeups) - len(free)
    fired = [w for w in windows if w["fired_ns"] is not None]
    return {
        "timers": len(windows),
        "fired": len(fired),
        "wakeups": len(wakeups),
        "outside_wakeups": len(free),
        "at_once": sum(w["earliest_ns"] <= w["registered_ns"] for w in windows),
        "early": sum(w["fired_ns"] < w["earliest_ns"] for w in fired),
        "missed": sum(w["fired_ns"] > w["latest_ns"] for w in fired),
        "optimum": optimum,
        "ratio": forced / optimum if optimum else 1.0 + forced,
    }


def disagreements(said, found):
    for name, value in found.items():
        if name not in said:
            yield f"{name} is missing, recomputed {value}"
        elif abs(said[name] - value) > 1e-9:
            yield f"{name} is {said[name]}, recomputed {value}"


def arms_beside(timers):
    """Timers in random order set as many new minima as their number's logarithm, give or take."""
    return ARMS_A_ROUND + 2 * max(0.0, math.log(timers / 1000))


def broken_promises(said, clock, rounds):
    def at_most(name, limit):
        if said[name] > limit:
            yield f"{name} is {said[name]}, promised at most {limit}"

    yield from at_most("early", 0)
    yield from at_most("kick_calls", 0)
    yield from at_most("arm_calls", said["wakeups"] + arms_beside(said["timers"] / rounds) * rounds)
    if said["fired"] != said["timers"]:
        yield f"{said['fired']} of {said['timers']} fired"
    if clock == "manual":
        yield from at_most("missed", 0)
        if said["ratio"] != 1:
            yield f"ratio is {said['ratio']}, promised exactly 1"
        return
    if said["slack_ns"] == "mixed" or said["slack_ns"] >= MS:
        yield from at_most("ratio", RATIO_REAL)
    kernel = said["driver_kernel_wakeups"]
    if kernel is not None:
        off, limit = abs(kernel - said["wakeups"]), max(0.05 * said["wakeups"], 3)
        if off > limit:
            yield f"the kernel counts {kernel} wakeups of the driver, the driver {said['wakeups']}"


def main(args):
    promises = "--promises" in args
    paths = [a for a in args if a != "--promises"]
    if len(paths) != 2 or any(p.startswith("-") for p in paths):
        print(__doc__, file=sys.stderr)
        return 2
    check_the_method()
    try:
        runs, reports = runs_of(read(paths[0])), read(paths[1])
    except (OSError, ValueError, KeyError, IndexError) as e:
        print(f"not the demo's output: {e!r}", file=sys.stderr)
        return 2
    wrong = []
    if not runs or len(runs) != len(reports):
        wrong.append(f"{len(runs)} runs dumped, {len(reports)} reported")
    for (run, windows, wakeups), said in zip(runs, reports):
        slack, clock = run["slack_ns"], run["clock"]
        found = recompute(windows, wakeups)
        here = list(disagreements(said, found))
        if said["slack_ns"] != slack:
            here.append(f"the report is for a slack of {said['slack_ns']}")
        if promises:
            rounds = len({w["round"] for w in windows})
            here += broken_promises(said, clock, rounds)
        figures = " ".join(f"{name}={value}" for name, value in found.items())
        print(f"slack_ns={slack} clock={clock} {figures}: {'WRONG' if here else 'agrees'}")
        wrong += [f"slack_ns={slack}: {what}" for what in here]
    for what in wrong:
        print(what, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
