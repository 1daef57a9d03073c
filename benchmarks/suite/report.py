"""The results as Markdown: for each workload a table, and what is not in it and why."""

from __future__ import annotations

from typing import Any

from suite.workloads import METHOD, WORKLOADS, Workload

Row = dict[str, Any]
OURS, BY_HAND = "loaderx_", "numpy_by_hand"
NO_LOADERS = (BY_HAND, "jax_by_hand")
LABELS = {
    "mnist128": "28×28 images in memory, batch 128",
    "mnist1024": "the same, batch 1024",
    "transform": "a function on each record, batch 128",
    "step": "a training step for each batch of 128",
    "tokens": "rows of 512 tokens, memory-mapped",
    "images64": "64×64×3 images: crop, flip, normalise",
    "aug32": "32×32×3 images: crop, flip, brightness, contrast, noise",
    "aug128": "the same, 128×128×3",
    "jpeg": "JPEG files: decode, crop, flip",
    "gil": "Python that holds the GIL, 2 workers",
    "transport": "8 MB batches from one worker",
    "remote": "64 kB records behind HTTP, nothing cached",
    "resume": "go on at 90 % of 10 million records",
    "parquet_text": "texts in Parquet",
    "imagefolder": "JPEG files in class folders: decode, centre",
    "tfds": "PNG images of a TFDS folder",
    "jsonl_pack": "JSON lines: tokenise, pack into rows",
}
COLUMNS = (("torch_",), ("grain_loader", "grain_map"), ("tf_data",), (BY_HAND,))


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    about = result["about"]
    parts = ["# loaderx beside its peers\n", surroundings(about), earlier(result)]
    parts += [summary(result), ahead(result)]
    if about["quick"]:
        parts.insert(1, "**A quick run: small sizes, one round. Its figures mean nothing.**\n")
    else:
        parts.append("![The same as a picture](results.png)\n")
    for name in dict.fromkeys(row["workload"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["workload"] == name]
        parts.append(section(WORKLOADS[name], rows))
    parts.append(versions(about))
    return "\n".join(parts)


def surroundings(about: dict[str, Any]) -> str:
    return (
        f"{about['when']}; {about['cores']} cores, {about['memory_gb']} GB, {about['system']}, "
        f"Python {about['python']}; load before the run {about['load_before']}; "
        f"{about['rounds']} rounds in {about['took_min']} minutes.{again(about)} "
        "[How it is measured](../../docs/benchmarks.md).\n"
    )


def again(about: dict[str, Any]) -> str:
    """When a run that was stopped went on; which workloads were measured once more, and when."""
    text = ""
    if about.get("continued"):
        text += f" Stopped, and continued: {'; '.join(about['continued'])}."
    if about.get("again"):
        found = ", ".join(f"{name} ({when})" for name, when in about["again"].items())
        text += f" Measured again, with all loaders: {found}."
    return text


def earlier(result: dict[str, Any]) -> str:
    """Which rows are older than the method that the page describes."""
    done = [row for row in result["rows"] if row["status"] == "ok"]
    old = dict.fromkeys(row["workload"] for row in done if row.get("method") != METHOD)
    if not old:
        return ""
    return (
        f"Measured before the method, or what a contender does, last changed: {', '.join(old)}.\n"
    )


def versions(about: dict[str, Any]) -> str:
    """Those of the run, and others of a workload that was measured again later."""
    lines = ["## Versions\n"]
    lines += [f"- {title}: {listed(found)}" for title, found in about["versions"].items()]
    for workload, others in about.get("other_versions", {}).items():
        lines += [f"- {title} in {workload}: {listed(found)}" for title, found in others.items()]
    return "\n".join(lines) + "\n"


def listed(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in packages.items())


def into_docs(text: str, result: dict[str, Any]) -> str:
    """The page of the docs with the figures of this run."""
    about = result["about"]
    figures = (
        f"From a run on {about['cores']} cores ({about['when']}, Python {about['python']}, load "
        f"{about['load_before']} before it began).{again(about)} "
        "[All tables](../benchmarks/results/results.md), "
        "[as JSON](../benchmarks/results/results.json).\n\n"
        "![Each loader on each workload](../benchmarks/results/results.png)\n\n"
    )
    return between(text, f"{figures}{earlier(result)}\n{summary(result)}\n{ahead(result)}")


def into_readme(text: str, result: dict[str, Any]) -> str:
    """README with the ratios of this run."""
    return between(text, ratios(result))


PAGES = {"docs/benchmarks.md": into_docs, "README.md": into_readme}


def between(text: str, figures: str) -> str:
    """A page with other figures between its two comments."""
    begin, end = "after a full run -->\n", "\n<!-- end of figures -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError("the page has no place for figures")
    return f"{before}{begin}\n{figures}{end}{after}"


def ratios(result: dict[str, Any]) -> str:
    """How many times as fast loaderx was, each loader in its fastest variant."""
    lines = [
        "| workload | fastest other loader | torch | Grain | tf.data | NumPy by hand |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, label in LABELS.items():
        rows = [row for row in result["rows"] if row["workload"] == name]
        ours, theirs = best_of(rows, True), best_of(rows, False)
        if not (ours and theirs):
            continue
        cells = [label, f"{theirs['title']}: **{times(times_faster(ours, theirs))}**"]
        for keys in COLUMNS:
            found = [row for row in rows if row["contender"] in keys and row["status"] == "ok"]
            best = max(found, key=better, default=None)
            cells.append(times(times_faster(ours, best)) if best else "cannot")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def times(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 2 else 1 if ratio < 10 else 0}f}"


def ahead(result: dict[str, Any]) -> str:
    """Where a peer is ahead of the fastest variant of loaderx, in whatever is measured."""
    lines = [
        "Where a peer is ahead of loaderx's fastest variant, by median, in whatever is measured "
        "(memory: only with as many records):\n",
        "| workload | what | peer | loaderx |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["workload"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["workload"] == name and row["status"] == "ok"]
        ours = best_of(rows, True)
        if ours:
            peers = [row for row in rows if row["contender"] not in (OURS, *NO_LOADERS)]
            lines += [f"| {name} | {found} |" for found in losses(ours, peers)]
    return "\n".join(lines) + "\n" if len(lines) > 3 else ""


def losses(ours: Row, peers: list[Row]) -> list[str]:
    """What, who, how much: theirs and ours."""
    found = []
    fastest = max(peers, key=better, default=ours)
    if better(fastest) > better(ours):
        found.append(f"throughput | {name_of(fastest)}: {value(fastest)} | {value(ours)}")
    measures: dict[str, tuple[str, Any]] = {"peak memory": ("peak_mb", megabytes)}
    if ours["unit"] == "s":
        measures["state"] = ("state_bytes", lambda x: f"{x:,} B")
        measures["CPU"] = ("cpu_s", milliseconds)
    else:
        measures["first batch"] = ("first_batch_s", milliseconds)
        measures["CPU per record"] = ("cpu_us_per_record", microseconds)
    for what, (field, say) in measures.items():
        fair = [row for row in peers if row.get(field) is not None]
        if what == "peak memory":  # a slow loader is measured with fewer records
            fair = [row for row in fair if row["records"] == ours["records"]]
        least = min(fair, key=lambda row: float(row[field]), default=ours)
        if ours.get(field) is not None and least[field] < ours[field]:
            found.append(f"{what} | {name_of(least)}: {say(least[field])} | {say(ours[field])}")
    return found


def name_of(row: Row) -> str:
    return f"{row['title']}, {row['variant']}"


# Summary ------------------------------------------------------------------------------------------


def better(row: Row) -> float:
    """More is better."""
    return float(-row["value"] if row["unit"] == "s" else row["value"])


def best_of(rows: list[Row], ours: bool) -> Row | None:
    """The fastest of loaderx, or of its peers; a loop by hand is neither."""
    keys = {row["contender"] for row in rows} - set(NO_LOADERS)
    keys = keys & {OURS} if ours else keys - {OURS}
    found = [row for row in rows if row["status"] == "ok" and row["contender"] in keys]
    return max(found, key=better, default=None)


def by_hand(rows: list[Row]) -> Row | None:
    """What could be reached: NumPy by hand, or for a step, data that are on the device."""
    limits = {WORKLOADS[row["workload"]].limit for row in rows}
    found = [row for row in rows if row["contender"] in limits and row["status"] == "ok"]
    return max(found, key=better, default=None)


def times_faster(ours: Row, theirs: Row) -> float:
    if ours["unit"] == "s":
        return float(theirs["value"] / ours["value"])
    return float(ours["value"] / theirs["value"])


def spread_of_ratio(ours: Row, theirs: Row) -> tuple[float, float]:
    """Round by round, since the rounds were interleaved."""
    pairs = zip(ours["rounds"], theirs["rounds"], strict=False)
    found = [b / a if ours["unit"] == "s" else a / b for a, b in pairs]
    return min(found), max(found)


def summary(result: dict[str, Any]) -> str:
    """One line for each workload: loaderx against the fastest peer, and against NumPy by hand."""
    lines = [
        "| workload | loaderx, best | fastest peer | loaderx / peer (rounds) | CPU, peer / loaderx "
        "| by hand | loaderx / by hand |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["workload"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["workload"] == name]
        ours, theirs, hand = best_of(rows, True), best_of(rows, False), by_hand(rows)
        cells = [name, value_with_cpu(ours) if ours else "-"]
        if ours and theirs:
            low, high = spread_of_ratio(ours, theirs)
            ratio = times_faster(ours, theirs)
            cells.append(f"{theirs['title']}, {theirs['variant']}: {value_with_cpu(theirs)}")
            cells.append(f"**{ratio:.2g}×** ({low:.2g} to {high:.2g})")
            cells.append(cpu_ratio(ours, theirs))
        else:
            cells += ["-", "-", "-"]
        cells.append(hand_cell(hand) if hand else "-")
        cells.append(f"{times_faster(ours, hand):.2f}×" if ours and hand else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def hand_cell(row: Row) -> str:
    """NumPy's is the usual loop; another one is named."""
    figure = value_with_cpu(row)
    return figure if row["contender"] == BY_HAND else f"{name_of(row)}: {figure}"


# A workload ---------------------------------------------------------------------------------------


def section(workload: Workload, rows: list[Row]) -> str:
    done = sorted((row for row in rows if row["status"] == "ok"), key=better, reverse=True)
    hand = by_hand(rows)
    most = max((row["records"] for row in done), default=0)
    resume = workload.unit == "s"
    measure = "seconds to the next batch" if resume else workload.unit
    last = "state" if resume else "first batch"
    used = "CPU" if resume else "CPU per record"
    unit = "by hand" if workload.limit == BY_HAND else "on the device"
    lines = [
        f"## {workload.name}: {workload.title}\n",
        f"| loader | variant | {measure} | {used} | cores used | lowest to highest | {unit} = 1 "
        f"| {last} | peak memory | how |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in done:
        title = f"**{row['title']}**" if row["contender"] == OURS else row["title"]
        ratio = f"{times_faster(row, hand):.2g}" if hand else "-"
        extra = f"{row['state_bytes']:,} B" if resume else milliseconds(row["first_batch_s"])
        cores = f"{row['cores_used']:.2f}" if row.get("cores_used") else "-"
        memory = megabytes(row["peak_mb"]) if row["peak_mb"] else "-"
        memory += "" if row["records"] == most else f" ({row['records']:,} records)"
        how = "; ".join(filter(None, (row["how"], row["note"])))
        spread = f"{number(row['low'])} to {number(row['high'])}"
        figures = (number(row["value"]), cpu_of(row) or "-", cores, spread, ratio, extra, memory)
        lines.append("| " + " | ".join((title, row["variant"], *figures, how)) + " |")
    others = [row for row in rows if row["status"] != "ok"]
    if others:
        lines.append("")
    for row in others:
        variant = "" if row["variant"] == "-" else f" ({row['variant']})"
        word = {
            "unsupported": "cannot do this",
            "unavailable": "not available",
            "invalid": "**INVALID**",
        }
        said = word.get(row["status"], "**ERROR**")
        lines.append(f"- {row['title']}{variant}: {said}: {row['reason']}")
    return "\n".join(lines) + "\n"


def number(x: float) -> str:
    if x >= 1000:
        digits = len(str(int(x))) - 3
        return f"{round(x / 10**digits) * 10**digits:,}" if digits > 0 else f"{x:,.0f}"
    return f"{x:.3g}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def microseconds(x: float) -> str:
    return f"{number(x)} µs"


def megabytes(x: float) -> str:
    return f"{x:,.0f} MB"


def value(row: Row) -> str:
    unit = "/s" if row["unit"] == "records/s" else row["unit"]
    return f"{number(row['value'])} {unit}"


def cpu_of(row: Row) -> str:
    """CPU time of a record, or of going on; nothing where it was not measured."""
    if row["unit"] == "s":
        return milliseconds(row["cpu_s"]) if row.get("cpu_s") is not None else ""
    used = row.get("cpu_us_per_record")
    return microseconds(used) if used is not None else ""


def value_with_cpu(row: Row) -> str:
    cpu = cpu_of(row)
    return f"{value(row)} ({cpu})" if cpu else value(row)


def cpu_ratio(ours: Row, theirs: Row) -> str:
    """How many times as much CPU time the other takes."""
    field = "cpu_s" if ours["unit"] == "s" else "cpu_us_per_record"
    if not ours.get(field) or theirs.get(field) is None:
        return "-"
    return f"{theirs[field] / ours[field]:.2g}×"
