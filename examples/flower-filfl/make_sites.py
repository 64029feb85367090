"""Write the data of each site to a file of its own, as sites in a deployment have it: python make_sites.py FOLDER 3"""

import sys
from pathlib import Path

import numpy as np

from flower_filfl.task import load_partition

folder, sites = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
for site in range(sites):
    x, y = load_partition(site, sites)
    np.savez(folder / f"site{site}.npz", x=x, y=y)
