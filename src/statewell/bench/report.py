"""`results.json` as one self-contained page: what came out, in a sentence, a table, three figures and
samples.

A pure function of the document: the same results give the same bytes, no clock, no machine, no torch. The
page has no script and asks for nothing outside itself. Start with `render`.
"""

from __future__ import annotations

from collections.abc import Sequence

from statewell.bench import chart, figures, words
from statewell.bench.figures import Figure
from statewell.bench.page import document, plain, table
from statewell.bench.results import MEMORY_CONTEXTS, Results, Row, Settings

HEADING = "Memories of language models, compared"


def render(results: Results) -> str:
    """The report of `results` as HTML. Rows that have not finished yet are simply not there."""
    rows = results["rows"]
    drawn = [figures.memory_against_context(rows), figures.time_against_context(rows)]
    pair = "\n".join(_figure(figure) for figure in drawn if figure is not None)
    learning = figures.loss_curves(rows)
    parts = [
        f"<h1>{plain(_heading(rows))}</h1>",
        f'<p class="lede">{_unbroken(plain(summary(results)))}</p>',
        _notice(results),
        _overview(results) if rows else "",
        _figure(learning, "broad") if learning is not None else "",
        f'<div class="pair">\n{pair}\n</div>' if pair else "",
        _samples(rows),
        _making(results),
    ]
    return document(HEADING, "\n".join(part for part in parts if part))


def _heading(rows: Sequence[Row]) -> str:
    if not rows:
        return HEADING
    counted = {
        1: "One memory",
        2: "Two memories",
        3: "Three memories",
        4: "Four memories",
        5: "Five memories",
        6: "Six memories",
    }
    return f"{counted.get(len(rows), f'{len(rows)} memories')}, trained alike and measured"


def summary(results: Results) -> str:
    """What came out, in plain words: who predicts best and how surely, what remembering costs, how fast each
    trains.
    """
    rows = results["rows"]
    if not rows:
        return "No architecture has finished training yet."
    best = min(rows, key=lambda row: row["val_bits_per_byte"])
    tokens = words.count(results["settings"]["tokens"])
    sentences = [
        f"After {tokens} training tokens, {words.title(best['arch'])} predicts held-out text best, at "
        f"{words.bits(best['val_bits_per_byte'])} bits per byte{_certainty(best, results['settings'])}."
    ]
    if len(rows) > 1:
        sentences += [_memory_sentence(rows), _speed_sentence(rows)]
    return " ".join(sentences)


def _unbroken(text: str) -> str:
    """Keep GPT-2 on one line: browsers break after a hyphen."""
    return text.replace("GPT-2", '<span class="whole">GPT-2</span>')


def _certainty(best: Row, settings: Settings) -> str:
    if best["within_spread_of"]:
        peers = words.listing([words.title(peer) for peer in best["within_spread_of"]])
        return f"; {peers} cannot be told apart from it, the difference being within the spread of the seeds"
    if settings["seeds"] < 2:
        return " (one seed: small differences may be chance)"
    return ""


def _memory_sentence(rows: Sequence[Row]) -> str:
    longest = str(MEMORY_CONTEXTS[-1])
    ordered = sorted(rows, key=lambda row: row["memory_bytes"][longest])
    least, most = ordered[0], ordered[-1]
    limit = f", though it stops at {most['limit']:,}" if most["limit"] else ""
    ratio = most["memory_bytes"][longest] / least["memory_bytes"][longest]
    return (
        f"To remember {int(longest):,} tokens, {words.title(most['arch'])} would need "
        f"{words.size(most['memory_bytes'][longest])}{limit}; {words.title(least['arch'])} needs "
        f"{words.size(least['memory_bytes'][longest])}, {words.times(ratio)} times less."
    )


def _speed_sentence(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: row["train_tokens_per_s"])
    slow, fast = ordered[0], ordered[-1]
    most, least = words.count(fast["train_tokens_per_s"]), words.count(slow["train_tokens_per_s"])
    return (
        f"On this machine {words.title(fast['arch'])} trained fastest, {most} tokens/s, "
        f"and {words.title(slow['arch'])} slowest, {least}."
    )


def _notice(results: Results) -> str:
    if results["finished"]:
        return ""
    wanted, done = len(results["settings"]["archs"]), len(results["rows"])
    return (
        f'<p class="notice">Not finished: {done} of {wanted} rows are here. '
        "The same command goes on where it stopped.</p>"
    )


COLUMNS = (
    ("", ("architecture",)),
    ("held-out bits per byte", ("fresh windows", "memory<br>carried")),
    ("memory of one sequence", tuple(f"{context:,}<br>tokens" for context in MEMORY_CONTEXTS)),
    ("limit", ("tokens",)),
    ("tokens per second", ("training", "decode")),
    ("parameters", ("total", "active", "compared")),
    ("work", ("FLOPs<br>per token",)),
)


def _overview(results: Results) -> str:
    rows = results["rows"]
    groups = "".join(
        f'<th colspan="{len(columns)}" scope="colgroup">{f"<span>{group}</span>" if group else ""}</th>'
        for group, columns in COLUMNS
    )
    heads = "".join(f'<th scope="col">{column}</th>' for _, columns in COLUMNS for column in columns)
    body = "\n".join(_row(row, rows) for row in rows)
    return (
        "<h2>Side by side</h2>\n"
        '<div class="scroll" tabindex="0"><table>\n<thead>\n'
        f'<tr class="groups">{groups}</tr>\n<tr>{heads}</tr>\n</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>\n{_footnotes(results)}"
    )


def _row(row: Row, rows: Sequence[Row]) -> str:
    best = min(peer["val_bits_per_byte"] for peer in rows) == row["val_bits_per_byte"]
    note = words.within(row)
    held_out = f"<td{' class=best' if best else ''}>{plain(words.held_out(row))}"
    held_out += f"<small>{plain(note)}</small></td>" if note else "</td>"
    cells = [
        f'<th scope="row">{_key(row["arch"])}{plain(words.title(row["arch"]))}</th>',
        held_out,
        f"<td>{words.bits(row['val_bits_per_byte_carried'])}{_cut(row)}</td>",
        *(_memory_cell(row, context) for context in MEMORY_CONTEXTS),
        f"<td>{words.count(row['limit']) if row['limit'] else 'none'}</td>",
        f"<td>{words.count(row['train_tokens_per_s'])}</td>",
        f"<td>{words.count(row['decode_tokens_per_s'])}</td>",
        *(f"<td>{words.count(row[name])}</td>" for name in ("parameters", "active_parameters", "compared_parameters")),
        f"<td>{words.rounded(row['flops_per_token'])}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _cut(row: Row) -> str:
    at = row["carried_truncated_at"]
    return "" if at is None else f"<small>first {at:,}<br>of each file</small>"


def _memory_cell(row: Row, context: int) -> str:
    measured = context in row["memory_measured"]
    past = "<small>past its limit</small>" if context in row["beyond_model_limit"] else ""
    mark, css_class = ("●", "measured") if measured else ("○", "planned")
    return f'<td class="{css_class}">{mark} {words.size(row["memory_bytes"][str(context)])}{past}</td>'


def _key(arch: str) -> str:
    """The line and mark that stand for an architecture in every figure."""
    return chart.key(figures.style_of(arch))


def _footnotes(results: Results) -> str:
    settings = results["settings"]
    length = f"{settings['train_length']:,}"
    spread = (
        f"± is the spread over {settings['seeds']} seeds: the largest less the smallest figure. Two rows no farther "
        "apart than the larger of their spreads are marked as within it."
        if settings["seeds"] > 1
        else "One seed: no spread is known."
    )
    return (
        f'<p class="quiet">Fresh windows: held-out text in windows of {length} tokens, each from empty memory; the '
        f"figure to compare. Carried: the memory goes on through each file. {spread} Compared parameters: active, "
        "without embeddings and head; the rows are matched on these unless the settings say otherwise. FLOPs: one "
        f"token forward at {length} tokens. Decode: one sequence, one token at a time, at "
        f"{_decode_context(results)} tokens remembered. ● measured here, ○ planned; fp32.</p>"
    )


def _decode_context(results: Results) -> str:
    run = [point["context"] for row in results["rows"] for point in row["time_per_token"] if point["seconds"]]
    return words.count(min(run, default=None))


def _figure(figure: Figure, css_class: str = "") -> str:
    return (
        f'<figure class="{css_class}">\n<h2>{plain(figure.heading)}</h2>\n{figure.wide}\n{figure.narrow}\n'
        f"<figcaption>{plain(figure.caption)}</figcaption>\n"
        f"<details><summary>The numbers</summary>{table(figure.columns, figure.rows)}</details>\n</figure>"
    )


def _samples(rows: Sequence[Row]) -> str:
    shown = [row for row in rows if row["samples"]]
    if not shown:
        return ""
    articles = []
    for row in shown:
        texts = "\n".join(
            f"<pre><b>{plain(sample['prompt'])}</b>{plain(sample['text'])}</pre>" for sample in row["samples"]
        )
        articles.append(f"<article><h3>{_key(row['arch'])}{plain(words.title(row['arch']))}</h3>\n{texts}</article>")
    return (
        '<h2>Samples</h2>\n<p class="quiet">What each wrote after the prompt in colour: '
        "same seed, same settings, first try.</p>\n"
        f'<div class="samples">\n{"".join(articles)}\n</div>'
    )


def _making(results: Results) -> str:
    machine, settings = results["machine"], results["settings"]
    text = settings["data"]
    budget = f"{words.count(settings['tokens'])} tokens"
    if settings["minutes"] is not None:
        budget += f" (what {settings['minutes']:g} minutes allow)"
    facts = [
        ("Command", f"<code>{plain(results['command'])}</code>"),
        ("Machine", plain(f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads used")),
        (
            "Versions",
            plain(f"statewell {machine['statewell']}, torch {machine['torch']}, Python {machine['python']}"),
        ),
        ("Started", plain(machine["date"])),
        (
            "Text",
            plain(
                f"{text['source']}: {text['files']:,} files, {text['train_bytes']:,} bytes to train on, "
                f"{text['held_out_bytes']:,} held out by file; content {text['hash'][:16]}"
            ),
        ),
        (
            "Training",
            plain(
                f"size {settings['size']}, {budget} per architecture and seed, {settings['rows_per_step']} rows of "
                f"{settings['train_length']:,} tokens a step, {words.counted(settings['seeds'], 'seed')}; "
                "same bytes in the same order for every row"
            ),
        ),
        ("Matched on", plain(_matching(settings))),
        *(("Note", plain(note)) for note in results["notes"]),
    ]
    items = "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return f"<h2>How it was made</h2>\n<dl>\n{items}\n</dl>"


def _matching(settings: Settings) -> str:
    if settings["match"] == "active":
        return "active parameters without embeddings and head, within 3%; the presets as they are"
    changes = "; ".join(settings["changes"]) or "no width had to change"
    return f"total parameters, within 3%; {changes}"
