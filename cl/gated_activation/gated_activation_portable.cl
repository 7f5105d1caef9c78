// Gated activation in plain OpenCL C.
#define exp_8(v) exp(v)

#include "gated_activation/gated_activation_tiles.clh"
