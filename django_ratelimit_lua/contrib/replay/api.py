"""What limits would have done to the requests of an access log: line → request → charges → decision → report."""

from .deciding import Progress, Replayed, ReplayTooSlowError, replay
from .reading import Log, UnreadableLogError

__all__ = ["Log", "Progress", "ReplayTooSlowError", "Replayed", "UnreadableLogError", "replay"]
