import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "workers"))  # engine_fakes: a topology is made of those workers
