// What a recording may hold, and what each mistake is told.
#include "lockstep/parallel/simulate/recording.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"
#include "support/catch.h"

using namespace lockstep;
using namespace lockstep::simulate;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

namespace {

const std::string kHead = "lockstep-recording 1\nstream 0 host:0 default\nstream 1 host:2 copies\nthread 0 host\n";

Recording parse(const std::string& entries) { return parse_recording(kHead + entries + "end\n", "step.rec"); }

}  // namespace

TEST_CASE("recording: every kind of entry") {
  const Recording recording = parse(
      "kernel 0 matmul f32 12 4 16 2x3,3x1,,2x1\nkernel 1 fill bf16 0 8 0 -\ncopy 1 host:0 cpu 4096\nfill 0 64\n"
      "record 0\nwait 1 0:4\nhost_wait 0:4\npoint\nafter 1:0\n"
      "collective 0 all_reduce bf16 100 world 1 4 -1\ntask 0 read\ncall set_device\nitem 4\nmark step\n"
      "thread 1 replica-host:2\npoint\n");
  REQUIRE(recording.streams.size() == 2);
  CHECK(recording.streams[1].device == 2);
  CHECK(recording.streams[1].label == "copies");
  CHECK(recording.device_count() == 3);
  REQUIRE(recording.threads.size() == 2);
  CHECK(recording.threads[1].name == "replica-host:2");
  const std::vector<Entry>& entries = recording.threads[0].entries;
  REQUIRE(entries.size() == 14);
  for (std::size_t i = 0; i < entries.size(); ++i) CHECK(entries[i].line == static_cast<int>(i) + 5);
  const Kernel& product = recording.kernels[static_cast<std::size_t>(entries[0].detail)];
  CHECK(product.name == "matmul");
  CHECK(product.dtype == "f32");
  CHECK(product.bytes_read == 12);
  CHECK(product.bytes_written == 4);
  CHECK(product.flops == 16);
  CHECK(product.shapes == std::vector<std::vector<std::int64_t>>{{2, 3}, {3, 1}, {}, {2, 1}});
  CHECK(recording.kernels[1].shapes.empty());
  const Copy& copy = recording.copies[0];
  CHECK((copy.source == 0 && copy.destination == kHostMemory && copy.bytes == 4096));
  CHECK(entries[3].bytes == 64);
  CHECK((entries[5].kind == Kind::wait && entries[5].stream == 1 && entries[5].other.entry == 4));
  CHECK((entries[6].kind == Kind::host_wait && entries[6].stream == -1));
  CHECK((entries[8].kind == Kind::after && entries[8].other.thread == 1 && entries[8].other.entry == 0));
  const Collective& collective = recording.collectives[0];
  CHECK((collective.op == "all_reduce" && collective.dtype == "bf16" && collective.group == "world" &&
         collective.bytes == 100));
  CHECK((collective.rank == 1 && collective.size == 4 && collective.root == -1));
  CHECK(entries[10].name == "read");
  CHECK(entries[11].name == "set_device");
  CHECK(entries[12].bytes == 4);
  CHECK((entries[13].kind == Kind::mark && entries[13].name == "step"));
}

TEST_CASE("recording: a mistake is told with its line and its word") {
  const auto says = [](const std::string& entries, int line, const std::string& expected, const std::string& got) {
    INFO(entries);
    CHECK_THROWS_WITH(parse(entries),
                      Equals(cat("[simulate] step.rec, line ", line, ": expected ", expected, ", got '", got, "'")));
  };
  says("point\nfly 0\n", 6, "a word of version 1 of the format", "fly");
  says("fill 0\n", 5, "3 words", "fill 0");
  says("fill  0 4\n", 5, "3 words", "fill  0 4");
  says("fill 2 4\n", 5, "one of the 2 streams listed", "2");
  says("fill 0 x\n", 5, "bytes (a number of at least 0)", "x");
  says("fill 0 -1\n", 5, "bytes (a number of at least 0)", "-1");
  says("fill 0 4k\n", 5, "bytes (a number of at least 0)", "4k");
  says("fill 0 99999999999999999999\n", 5, "bytes (a number of at least 0)", "99999999999999999999");
  says("copy 0 host:0 gpu 4\n", 5, "a device such as host:0, or cpu", "gpu");
  says("kernel 0 add f32 1 1 1 2xx\n", 5, "an extent (a number of at least 0)", "");
  says("record 0\nwait 1 0:1\n", 6, "the entry of a record, for wait", "0:1");
  says("host_wait 0:7\n", 5, "an entry that the recording has", "0:7");
  says("after 3:0\n", 5, "an entry that the recording has", "3:0");
  says("after 3\n", 5, "thread:entry", "3");
  says("collective 0 all_reduce f32 4 w 4 4 -1\n", 5, "a rank below 4", "4");
  says("collective 0 broadcast f32 4 w 0 4 4\n", 5, "a root below 4", "4");
  says("collective 0 broadcast f32 4 w 0 0 0\n", 5, "the number of ranks (a number of at least 1)", "0");
  says("thread 2 other\n", 5, "the number 1", "2");
  says("stream 2 host:0 late\n", 5, "streams before the first thread", "stream 2 host:0 late");
  says("\n", 5, "a word of version 1 of the format", "");

  const auto whole = [](const std::string& text) { parse_recording(text, "step.rec"); };
  CHECK_THROWS_WITH(whole(""), Contains("line 1") && Contains("not whole"));
  CHECK_THROWS_WITH(whole("lockstep-recording 2\nend\n"), Contains("the first line 'lockstep-recording 1'"));
  CHECK_THROWS_WITH(whole(kHead + "point\n"), Contains("line 6") && Contains("a last line 'end'"));
  CHECK_THROWS_WITH(whole(kHead + "end\nmore\n"), Contains("nothing after 'end'"));
  CHECK_THROWS_WITH(whole("lockstep-recording 1\npoint\nend\n"), Contains("a line 'thread' before"));
  CHECK_THROWS_WITH(read_recording("/no/such/file.rec"), Contains("'/no/such/file.rec'"));
  CHECK_THROWS_WITH(read_recording("/"), Contains("the recording '/': Is a directory"));
}
