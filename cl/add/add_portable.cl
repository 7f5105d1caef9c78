// Addition in plain OpenCL C.
#include "add/add_tiles.clh"
