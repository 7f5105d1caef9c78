// Addition for NVIDIA GPUs: streaming loads and stores.
#include "common/nv.clh"

#include "add/add_tiles.clh"
