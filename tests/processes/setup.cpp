// The devices of this program.
#include "support/host_devices.h"
