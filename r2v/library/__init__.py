"""The public library: the classes that `import r2v` offers. Everything else in the package is internal."""

import logging
import warnings

# Advice of other libraries, to whoever imports them, on widgets and kernels that nothing here uses.
warnings.filterwarnings("ignore", message="IProgress not found")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
