"""Settings of the fuzz test of command lines. It draws 10 examples; `FUZZ_EXAMPLES=500` changes that."""

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
SLOW_CHECKS = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
)


def fuzz(examples=EXAMPLES):
    """Settings of a fuzz test: the same examples in every run, without a time limit."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=SLOW_CHECKS,
    )
