"""Scripts that tests start in processes of their own import one another by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
