"""The ranks that are left when one is killed go on by themselves, under lockstep-run.

shrink.py <lockstep-run> <lockstep-launch-shrink>
"""
import subprocess
import sys

RUN, PROGRAM = sys.argv[1:3]
failures = 0
for victim in (0, 2):
    result = subprocess.run([RUN, "-n", "4", "--patience", "60", "--no-prefix", PROGRAM, str(victim)],
                            capture_output=True, text=True, timeout=240)
    left = [rank for rank in range(4) if rank != victim]
    expected = [f"rank {new} of 3 was {old} of 4 without {victim}, shared_memory, sum 3"
                for new, old in enumerate(left)]
    got = sorted(result.stdout.split("\n"))
    if got != [""] + sorted(expected) or result.returncode != 128 + 9:
        failures += 1
        print(f"FAILED: rank {victim} is killed: code {result.returncode}\n{result.stdout}{result.stderr}")
sys.exit(failures)
