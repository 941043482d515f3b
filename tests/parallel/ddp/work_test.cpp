#include "lockstep/parallel/ddp/work.h"

#include <thread>

#include "parallel/support.h"

using namespace parallel_test;

namespace {

Device device() { return support::first_devices(1)[0]; }

Work forgotten() {
  const WorkPromise promise(device());
  return promise.work();
}

}  // namespace

TEST_CASE("steps follow a complete work at once, a late one when it is waited for") {
  std::string order;
  Work complete = Work().then([&] { order += "a"; }).then([&] { return Work().then([&] { order += "b"; }); });
  CHECK(order == "ab");
  CHECK_FALSE(complete.late());
  const WorkPromise promise(device()), inner(device());
  Work late = promise.work().then([&] { order += "c"; }).then([&] { return inner.work().then([&] { order += "d"; }); });
  late = std::move(late).then([&] { order += "e"; });
  promise.complete();  // before it is waited for, and still nothing is run
  CHECK(late.late());
  CHECK(order == "ab");
  std::thread other([&] { inner.complete(); });
  std::move(late).wait();
  other.join();
  CHECK(order == "abcde");
}

TEST_CASE("how a work fails") {
  const auto failing = [](const std::function<Work(const WorkPromise&)>& make) {
    return message_of<Error>([&] {
      const WorkPromise promise(device());
      make(promise).wait(Milliseconds(1));
    });
  };
  bool ran = false;
  CHECK(failing([&](const WorkPromise& p) {
          p.fail(std::make_exception_ptr(Error("no more")));
          return p.work().then([&] { ran = true; });
        }) == "no more");
  CHECK_FALSE(ran);
  CHECK(failing([](const WorkPromise& p) {
          p.complete();
          return p.work().then([] { throw Error("a step"); });
        }) == "a step");
  CHECK(missing(failing([](const WorkPromise& p) { return p.work(); }), {"within 1 ms"}) == "");
  CHECK(missing(message_of<Error>([] { forgotten().wait(); }), {"got neither"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] {
                  const WorkPromise promise(device());
                  promise.complete();
                  promise.fail(std::make_exception_ptr(Error("late")));
                }),
                {"got a second one"}) == "");
  CHECK(message_of<Error>([] {
          const WorkPromise promise(device());
          promise.work().wait(Milliseconds(10'000), [] { throw Error("another rank"); });
        }) == "another rank");
}
