"""`python -m batch_pipeline_tests.conformance CMD…`: report the rules that a command breaks.

The command is run again with `--state FILE` for each STATE that it printed.
"""

import os
import sys

from batch_pipeline_tests.conformance.rules import Producer, broken_resume, broken_rules

if __name__ == "__main__":
    producer = Producer(command=sys.argv[1:], environment=os.environ)
    lines = producer.lines()
    problems = [*broken_rules(lines), *broken_resume(producer, lines)]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    sys.exit(1 if problems else 0)
