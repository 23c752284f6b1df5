"""Run encode tasks on Spark: sessions, clusters, the warm server, transforms.

Importing a module of this package starts nothing and does not import pyspark; sessions do.
"""

import warnings

# Records are passed as Arrow data, so pandas does not convert any of them.
warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
