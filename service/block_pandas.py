"""To be imported before Arrow by every service: Arrow loads numpy and pandas wherever they are installed.

That is most of a second and tens of megabytes at each start, for what no service uses.
"""

import sys

for _name in ("numpy", "pandas"):
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]
