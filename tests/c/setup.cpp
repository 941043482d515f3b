#include "support/host_devices.h"
