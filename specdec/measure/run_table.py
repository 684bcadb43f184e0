"""The table that a run prints, made from ``results.json`` alone."""

from __future__ import annotations

from typing import Any

from specdec.measure.tables import aligned

TOLERANCE = 0.15  # Of the measured speedup around the predicted one.
SHOWN_MISMATCHES = 10
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeLsum": "ROUGE-Lsum",
}


def format_table(results: dict[str, Any]) -> str:
    """A run's numbers, and a sentence for each thing that should not go unnoticed."""
    r = results
    speculative = r["method"] == "speculative"
    target = r["target"] + (f" with {r['weights']} weights" if r["weights"] else "")
    shape = r["tree"] or f"gamma {r['gamma']}"
    title = f"{r['task']}: {target} drafted by {r['drafter']}, {shape}"
    if r["stop_below"]:
        title += f", stopping below {r['stop_below']:g}"
    if r["draft_temperature"] != r["temperature"]:
        title += f", guesses drawn at temperature {r['draft_temperature']:g}"
    if r["verifier"] != ("RecursiveVerifier" if r["tree"] else "TokenVerifier"):
        title += f", {r['verifier']}"
    if not speculative:
        title = f"{r['task']}: {target}, plain decoding"
    setting = f"{_sampling(r)}, batch size {r['batch_size']}, {r['dtype']}, {r['device']}"
    if beam := r.get("beam"):  # Not in results of before there were beams.
        title = f"{r['task']}: {target}, {beam['num_beams']} beams by the rule {beam['rule']}"
        if r["gamma"]:
            title += f", drafted by {r['drafter']}, gamma {r['gamma']}"
        setting = setting.removeprefix("greedy, ")
    if r["mesh"]:
        setting += ", mesh {data} x {model} (data x model)".format_map(r["mesh"])
    rules = r.get("rules")  # Not in results of before there were rules.
    out = [
        title,
        setting,
        *([f"rules: {', '.join(rules)}"] if rules else []),
        "",
        *aligned(_counts(r), left=(0, -1)),
    ]
    if r["spread"] is not None:
        out += ["", *aligned(_speeds(r), left=(0, -1))]
    if r["quality"] is not None:
        scores = (f"{METRICS.get(name, name)} {v:.1f}" for name, v in r["quality"].items())
        out += ["", "  ".join(("quality", *scores))]
    remarks = [*_skipped_remarks(r), *_weights_remarks(r), *lossless_remarks(r), *speed_remarks(r)]
    return "\n".join([*out, *(["", *remarks] if remarks else [])])


def _sampling(r: dict[str, Any]) -> str:
    if r["temperature"] == 0:
        return "greedy"
    off = {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1}
    parts = {"temperature": r["temperature"]}
    parts |= {key: r[key] for key, value in off.items() if r.get(key, value) != value}
    return ", ".join(f"{key.replace('_', '-')} {value:g}" for key, value in parts.items())


_BEAM_RATES = (
    ("levels_per_call", "calls of plain beams / calls"),
    ("acceptance_rate", "levels accepted / examined"),
    ("cost_ratio", "c: draft level / call of plain beams"),
    ("verify_ratio", "v: call on {nodes} tokens / of plain beams"),
)
_RATES = (
    ("alpha", "mean of sum min(p, q)"),
    ("acceptance_rate", "accepted / examined"),
    ("draft_utilization", "accepted / proposed"),
    ("block_efficiency", "tokens / target call"),
    ("cost_ratio", "c: draft step / target step"),
    ("verify_ratio", "v: target call on {width} tokens / on 1"),
)


def _counts(r: dict[str, Any]) -> list[list[str]]:
    rows = [["tokens", str(r["num_tokens"]), f"in {r['num_examples']} rows"]]
    rows.append(["target calls", str(r["target_calls"]), ""])
    rates = {"speculative": _RATES, "speculative_beam": _BEAM_RATES}.get(r["method"], ())
    if r["method"] == "speculative_beam":
        ends = ", ".join(f"{name} {count}" for name, count in sorted(r["block_ends"].items()))
        rows.append(["blocks ended by", ends, ""])
    elif r["method"] == "speculative" and len(r["accepted_by_rank"]) > 1:
        by_rank = " / ".join(map(str, r["accepted_by_rank"]))
        rows.append(["accepted by rank", by_rank, "guesses, by their index among their siblings"])
    nodes = r["topology"]["nodes"]
    for key, meaning in rates:
        if key == "alpha" and r["tree"]:
            meaning = "mean acceptance at a position"
        if r[key] is not None:
            rows.append([key, f"{r[key]:.3f}", meaning.format(nodes=nodes, width=nodes + 1)])
    return rows


_SPEEDUPS = (
    ("whole decode, with encoders", "predicted_speedup_whole", "measured_speedup"),
    ("decoder only", "predicted_speedup", "measured_speedup_decoder"),
    ("decoder only, v = 1 (Thm 3.8)", "predicted_speedup_thm38", None),
    ("decoder only, from counted blocks", "predicted_speedup_counted", None),
)


def _speeds(r: dict[str, Any]) -> list[list[str]]:
    spread = r["spread"]

    def measured(values: dict[str, float], digits: int = 2) -> list[str]:
        median, low, high = (f"{values[key]:.{digits}f}" for key in ("median", "low", "high"))
        return [median, f"({low} to {high})"]

    rows = []
    if spread["measured_speedup"] is not None:
        rows.append(["speedup", "predicted", "measured", f"(range of {spread['repetitions']})"])
        for name, prediction, key in _SPEEDUPS[: 1 if r.get("beam") else None]:
            predicted = "" if r[prediction] is None else f"{r[prediction]:.2f}"
            rows.append([name, predicted, *(measured(spread[key]) if key else ("", ""))])
    rows.append(["milliseconds", "", "", ""])
    for method, values in spread["ms_per_token"].items():
        rows.append([f"per token, {method}", "", *measured(values, 3)])
    for model, values in spread["encode_ms"].items():
        rows.append([f"to encode a batch, {model}", "", *measured(values, 3)])
    return rows


def _skipped_remarks(r: dict[str, Any]) -> list[str]:
    if not r["num_skipped"]:
        return []
    total = r["num_examples"] + r["num_skipped"]
    return [f"SKIPPED: {r['num_skipped']} of {total} rows; the reasons are in skipped.jsonl."]


def _weights_remarks(r: dict[str, Any]) -> list[str]:
    if not r["weights"]:
        return []
    found = r["agreement"]
    low, high = found["alpha_interval"]
    return [
        f"{r['weights']} weights are another model than the full ones: along {found['num_texts']} "
        f"outputs the two agree at alpha {found['alpha']:.3f} (95 %: {low:.3f} to {high:.3f})."
    ]


def lossless_remarks(r: dict[str, Any]) -> list[str]:
    """Remarks on the comparison with plain greedy decoding, and on loss that was chosen."""
    rows = r["num_examples"]
    if not r["lossless"]:
        differ = r["greedy_mismatches"]
        found = "" if differ is None else f" {differ} of {rows} rows differ from plain decoding."
        return [f"LOSSY: {r['verifier']} does not follow the target's distribution.{found}"]
    if r["greedy_mismatches"] is None:
        unchecked = r["method"].startswith("speculative") and r["temperature"] == 0
        return ["Not compared with plain decoding (CHECK = False)."] if unchecked else []
    remarks = []
    if r["greedy_mismatches_width_matched"]:
        remarks += [
            "*** NOT LOSSLESS ***",
            f"*** {r['greedy_mismatches_width_matched']} of {rows} rows differ from the "
            "width-matched reference. On CPU, where both do the same arithmetic, this is a bug; on "
            "an accelerator two programs may round differently: look at the gaps of the logits. "
            "***",
        ]
    else:
        remarks.append(
            f"lossless: all {rows} rows equal to the width-matched reference, "
            f"{rows - r['greedy_mismatches']} to plain decoding."
        )
    if audit := r.get("audit"):
        remarks.append(
            f"audit: {audit['close']} of {r['num_tokens']} tokens have their two best logits "
            f"within {audit['rounding']:.2g}, the most by which calls of another width moved them."
        )
    shown = r["greedy_mismatch_rows"][:SHOWN_MISMATCHES]
    for row in shown:
        place, gap = row["position"], row["top2_gap"]
        where = f"from plain decoding at token {place}, where the target's two best logits"
        if r.get("beam"):
            where = f"from plain beams at hypothesis {place + 1}: the two scores"
        remarks.append(f"  row {row['id']} differs {where} are {gap:.2g} apart")
    if r["greedy_mismatches"] > len(shown):
        remarks.append(f"  and {r['greedy_mismatches'] - len(shown)} more, in results.json")
    return remarks


def speed_remarks(r: dict[str, Any]) -> list[str]:
    """Plain words where speculation does not pay, or theory and measurement disagree."""
    measured, predicted = r["measured_speedup_decoder"], r["predicted_speedup"]
    remarks = []
    whole = {"measured": r["measured_speedup"], "predicted": r["predicted_speedup_whole"]}
    below = [f"{value:.2f} {word}" for word, value in whole.items() if value and value < 1]
    if below:
        smaller = "tree" if r["tree"] else "gamma"
        remarks.append(
            f"Speculation does not pay here: speedup {' and '.join(below)}. A cheaper draft, a "
            f"smaller {smaller} or a draft that agrees more would help."
        )
    if measured and predicted and abs(measured / predicted - 1) > TOLERANCE:
        side = "below" if measured < predicted else "above"
        remarks.append(
            f"The measured speedup of the decoder is {abs(measured / predicted - 1):.0%} {side} "
            "the predicted one. The counted blocks, with rows that end inside a block and "
            f"acceptances that come in runs, predict {r['predicted_speedup_counted']:.2f}. Look at "
            "the ranges too: they are wide on a busy machine."
            + (" A batch also waits for its slowest row." if r["batch_size"] > 1 else "")
        )
    return remarks
