// Gated activation in plain OpenCL C.
#define sigmoid8(v) (1.0f / (1.0f + exp(-(v))))

#include "gated_activation/gated_activation_tiles.clh"
