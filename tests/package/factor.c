/* What tells one plug-in from the other. */
const int plugin_factor = PLUGIN_FACTOR;
