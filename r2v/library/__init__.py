"""The public library: the classes that `import r2v` offers. Everything else in the package is internal."""

import logging
import warnings

# Import-time advice of other libraries on widgets and kernels that R2V does not use.
warnings.filterwarnings("ignore", message="IProgress not found")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
