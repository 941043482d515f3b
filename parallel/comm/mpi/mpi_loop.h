// The engine's thread: every call of MPI is made here.
#pragma once

#include <array>

#include "lockstep/parallel/comm/mpi/mpi_engine.h"
#include "lockstep/parallel/comm/mpi/mpi_library.h"

namespace lockstep::detail {

// What transfer() waits for.
struct MpiEngine::Batch {
  std::shared_ptr<MpiGroup> group;
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
    std::vector<mpi::Request> requests;
    std::vector<const MpiMessage*> of;  // by request
    std::vector<bool> cancelled;
    std::size_t pending = 0;
    bool stopping = false;
    Clock::time_point give_up = Clock::time_point::max();
  };
  static constexpr std::size_t kControlBytes = 4096;
  struct Control {
    std::shared_ptr<MpiGroup> group;
    std::array<char, kControlBytes> bytes;
    mpi::Request request = 0;
  };
  struct DetachedRequest {
    mpi::Request request;
    std::unique_ptr<std::string> text;  // what is being sent, where it is the engine's
  };

  bool take_commands();  // false: stop
  bool await_endings();  // of the other processes; false: some do not come
  bool listen();         // these return whether anything has happened
  bool advance(Active& active);
  bool progress_detached();
  void post(Active& active);
  void stop(Active& active, Outcome outcome, std::vector<int> members);
  void notify_members(const MpiGroup& group);
  void receive_control(Control& control);
  void cancel(Control& control);
  std::string message_of(int code) const;
  void error(const std::shared_ptr<MpiGroup>& group, const char* call, int code);
  int tag_number(const MpiGroup& group, MpiTag tag) const {
    return static_cast<int>(group.context * kTagsPerContext + static_cast<int>(tag));
  }

  MpiEngine& engine_;
  const mpi::Table& mpi_ = mpi::library();
  bool own_ = false;  // MPI was initialised here
  int max_tag_ = 0;
  std::vector<std::unique_ptr<Active>> active_;
  std::map<std::int64_t, std::unique_ptr<Control>> controls_;  // by context
  std::vector<DetachedRequest> detached_;
};

}  // namespace lockstep::detail
