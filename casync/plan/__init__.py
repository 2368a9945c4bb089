"""Plans of gradients: what a plan says, the files that hold plans, and `casync plan`."""

from casync.plan.plans import *  # noqa: F403
from casync.plan.plans import __all__ as __all__
