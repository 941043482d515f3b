// A store in a folder: for processes that share files, but no launcher.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/comm/store/store.h"

namespace lockstep {

struct FileStoreOptions {
  std::string folder;  // there already; whoever can write in it is trusted
  // Tells runs that use the same folder apart; the same for all ranks of one, and new for each, so that nobody reads
  // what a run before has left. 1 to 64 letters, digits, '.', '-' or '_'.
  std::string run_id;
  Milliseconds timeout{60'000};  // for the lock that every change takes
};

// The folder must belong to this user or to root, and be writable for nobody else unless it is sticky, as /tmp is;
// symbolic links are not followed, and files of other users not used: InvalidArgument or CommError. Values appear
// whole. A process that dies while it changes a value leaves it as it was. On a shared file system the lock is as good
// as its flock, and a get() looks again every now and then.
LOCKSTEP_API std::shared_ptr<Store> make_file_store(const FileStoreOptions& options);

// Removes what a run has left in the folder, once nobody uses it any more.
LOCKSTEP_API void remove_file_store(const FileStoreOptions& options);

}  // namespace lockstep
