"""Judges the copies of one service for the demo: reads what GET /state of each answered, one JSON document per line.

Right is: one initialisation for all, the same pid and indexes, threads that tick, a hostname of its own, and the write
that the first copy was sent ("written" = "here only") in no other. Exit code 1 if not.
"""

import json
import sys

SHARED = ("pid", "digest", "seed", "init_ms")


def main():
    states = [json.loads(line) for line in sys.stdin if line.strip()]
    if not states:
        sys.exit("judge: no copy answered")
    first, others = states[0], states[1:]
    print(
        f"   {len(states)} copies answered: pid {first['pid']}, {first['threads']} threads, "
        f"indexes {first['digest']}, built once in {first['init_ms']} ms"
    )
    findings = {
        "the state of the original": all(state[field] == first[field] for state in others for field in SHARED),
        "threads that tick": all(state["ticks"] > 0 for state in states),
        "a hostname of its own": len({state["hostname"] for state in states}) == len(states),
        "writes of its own": first["values"] == {"written": "here only"}
        and all(state["values"] == {} for state in others),
    }
    for what, held in findings.items():
        print(f"   {'yes' if held else 'NO '} {what}")
    sys.exit(not all(findings.values()))


if __name__ == "__main__":
    main()
