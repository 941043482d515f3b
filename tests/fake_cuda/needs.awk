# Lets each test case begin with the last device that it names (support/cuda_devices.h), before it has done anything: where
# that is not there the case is skipped. Reads what on_cuda.sed has written; changes no line's number.
function need(index_) {
  if (index_ + 0 > most && index_ + 0 < 8) most = index_ + 0
}
function look(text, part, count, numbers, i) {
  while (match(text, /(cuda_device|hosts)\([{0-9][0-9, {}]*\)/)) {
    part = substr(text, RSTART, RLENGTH)
    text = substr(text, RSTART + RLENGTH)
    is_count = part ~ /^hosts\([0-9]/
    gsub(/[^0-9,]/, "", part)
    count = split(part, numbers, ",")
    for (i = 1; i <= count; ++i) need(is_count ? numbers[i] - 1 : numbers[i])
  }
}
/^TEST_CASE\(/ { inside = 1; lines = 0; most = 0 }
!inside { print; next }
{ held[++lines] = $0; look($0) }
/^}/ || /^TEST_CASE\(.*}$/ {
  for (i = 1; i <= lines; ++i) {
    if (most > 0 && sub(/{$/, "{ (void)support::cuda_device(" most ");", held[i])) most = 0
    print held[i]
  }
  inside = 0
}
