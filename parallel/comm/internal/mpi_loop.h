// The engine's thread: every call of MPI is made here.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>

#include "lockstep/parallel/comm/internal/mpi_engine.h"

namespace lockstep::detail {

// What transfer() waits for.
struct MpiEngine::Batch {
  std::shared_ptr<MpiChannel> channel;
  std::span<const MpiMessage> messages;
  std::uint64_t sequence;
  Deadline deadline;
  Result result;
  bool done = false;  // under the lock
};

class MpiEngine::Loop {
 public:
  explicit Loop(MpiEngine& engine) : engine_(engine) {}
  std::string begin();  // why MPI cannot be used, "" when it can
  void run();

 private:
  struct Active {
    Batch* batch;
    std::vector<MPI_Request> requests;
    std::vector<const MpiMessage*> of;  // by request
    std::vector<bool> cancelled;
    std::size_t pending = 0;
    bool stopping = false;
    Clock::time_point give_up = Clock::time_point::max();
  };
  static constexpr std::size_t kControlBytes = 4096;
  struct Control {
    std::shared_ptr<MpiChannel> channel;
    std::array<char, kControlBytes> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Leftover {
    MPI_Request request;
    std::unique_ptr<std::string> text;  // what is being sent, where it is the engine's
  };

  bool take_orders();  // false: stop
  bool listen();       // these return whether anything has happened
  bool advance(Active& active);
  bool send_leftovers();
  void post(Active& active);
  void stop(Active& active, Outcome outcome, std::vector<int> members);
  void tell(const MpiChannel& channel);
  void receive_control(Control& control);
  void cancel(Control& control);
  void error(const std::shared_ptr<MpiChannel>& channel, const char* call, int code);
  int tag(const MpiChannel& channel, MpiLane lane) const {
    return static_cast<int>(channel.context * 8 + static_cast<int>(lane));
  }

  MpiEngine& engine_;
  MPI_Comm world_ = MPI_COMM_NULL;
  bool own_ = false;  // MPI was initialised here
  std::int64_t most_tags_ = 0;
  std::vector<std::unique_ptr<Active>> active_;
  std::map<std::int64_t, std::unique_ptr<Control>> controls_;  // by context
  std::vector<Leftover> leftovers_;
};

}  // namespace lockstep::detail
