"""A simulated network that drives the workers' engines in virtual time.

`Net` is where to start. `scenarios` has the lines that must hold, `sizes` those about sizes of
replies, `dead_lists` those about long lists that are mostly dead; `layouts` the downloads over the
measured layouts; `probe` asks simulated resolvers by hand; `python -m tests.simnet --help`.
"""

from tests.simnet import dead_lists, sizes
from tests.simnet.clients import Client, ClosedLoop, DnsttClient, IodineClient, OpenLoop
from tests.simnet.delays import lognormal, uniform
from tests.simnet.layouts import LAYOUTS, goodput
from tests.simnet.net import START_AT, Net
from tests.simnet.resolver import SimResolver
from tests.simnet.scenarios import SCENARIOS, Figure, Scenario
from tests.simnet.series import Series
from tests.simnet.server import Server, Session

__all__ = [
    "LAYOUTS",
    "SCENARIOS",
    "START_AT",
    "Client",
    "ClosedLoop",
    "DnsttClient",
    "Figure",
    "IodineClient",
    "Net",
    "OpenLoop",
    "Scenario",
    "Series",
    "Server",
    "Session",
    "SimResolver",
    "dead_lists",
    "goodput",
    "lognormal",
    "sizes",
    "uniform",
]
