// Which work of the device is ordered before which, by vector clocks: races are errors although nothing runs in parallel.
//
// Each stream counts its kernels. A clock says up to which kernel of every stream is done before what comes next, on a
// stream or on the host: by events, by waits, and by the host's own order of calls. A kernel that touches memory which
// unordered work has written, or writes what unordered work reads, is refused. Freed memory goes back to the stream it was
// allocated on, whose next allocation may be any of it, as in CUDA's caching allocator: work on other streams must be
// ordered before, or recorded (record_stream).
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace sim {

constexpr int64_t kHost = -1;

using Clock = std::map<int64_t, uint64_t>;  // kernels that are done, by stream

struct Use {
  int64_t stream = 0;
  uint64_t tick = 0;  // 0: never
  const char* name = "";
};

using Uses = std::map<int64_t, Use>;

// What is known about the uses of a piece of memory.
struct History {
  int64_t home = 0;  // the stream it was allocated on
  Use written;
  Uses read;
  std::set<int64_t> recorded;
};

// A copy between device and pinned host memory, which takes place some time before the host has waited for it.
struct Copy {
  int64_t stream;
  uint64_t tick;
  at::Tensor host, bytes;  // as they were, or will be, when the copy is done
  bool is_download;
};

inline thread_local int64_t current_stream = 0;

class Order {
 public:
  static Order& get() {
    static Order* order = new Order;
    return *order;
  }

  // The next kernel of a stream begins.
  uint64_t begin(int64_t stream) {
    std::lock_guard<std::mutex> hold(mutex_);
    join(clocks_[stream], clocks_[kHost]);
    return clocks_[stream][stream] = ++ticks_[stream];
  }

  void use(History& memory, int64_t stream, bool is_write, const char* name) {
    std::lock_guard<std::mutex> hold(mutex_);
    check(memory.written, stream, name, is_write ? "writes" : "reads", "writes");
    if (is_write)
      for (auto& [_, read] : memory.read) check(read, stream, name, "writes", "uses");
    const Use now{stream, ticks_[stream], name};
    if (is_write) {
      memory.written = now;
      memory.read.clear();
    } else {
      memory.read[stream] = now;
    }
  }

  void allocated(History& memory) {
    std::lock_guard<std::mutex> hold(mutex_);
    memory.home = current_stream;
    memory.read = freed_[current_stream];
  }

  void freed(const History& memory) {
    std::lock_guard<std::mutex> hold(mutex_);
    Uses& all = freed_[memory.home];
    auto add = [&](const Use& use) {
      if (use.tick && !memory.recorded.count(use.stream) && use.tick > all[use.stream].tick) all[use.stream] = use;
    };
    add(memory.written);
    for (auto& [_, read] : memory.read) add(read);
  }

  void record(History& memory, int64_t stream) {
    std::lock_guard<std::mutex> hold(mutex_);
    memory.recorded.insert(stream);
  }

  Clock clock_of(int64_t stream) {
    std::lock_guard<std::mutex> hold(mutex_);
    join(clocks_[stream], clocks_[kHost]);
    return clocks_[stream];
  }

  // What comes next on a stream, or on the host, comes after the clock.
  void wait(int64_t waiting, const Clock& clock) {
    std::unique_lock<std::mutex> hold(mutex_);
    join(clocks_[waiting], clock);
    if (waiting != kHost) return;
    std::deque<Copy> done, left;
    for (auto& copy : copies_) (copy.tick <= clocks_[kHost][copy.stream] ? done : left).push_back(copy);
    copies_ = left;
    hold.unlock();
    for (auto& copy : done) finish(copy);
  }

  void host_waits_for_all() {
    Clock all;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      for (auto& [stream, tick] : ticks_) all[stream] = tick;
    }
    wait(kHost, all);
  }

  // What an upload finds in pinned memory that a download still fills: its bytes, if it is ordered before.
  at::Tensor coming(const at::Tensor& host, int64_t stream) {
    std::lock_guard<std::mutex> hold(mutex_);
    at::Tensor found;
    for (auto& copy : copies_) {
      if (!copy.is_download || copy.host.data_ptr() != host.data_ptr() || copy.host.sizes() != host.sizes()) continue;
      TORCH_CHECK(copy.tick <= clocks_[stream][copy.stream], "race on the device: an upload on stream ", stream,
                  " reads pinned memory that a download on stream ", copy.stream,
                  " writes, and nothing orders the one before the other");
      found = copy.bytes;
    }
    return found;
  }

  void add_copy(Copy copy) {
    std::lock_guard<std::mutex> hold(mutex_);
    copies_.push_back(std::move(copy));
  }

 private:
  static void join(Clock& clock, const Clock& other) {
    for (auto& [stream, tick] : other)
      if (tick > clock[stream]) clock[stream] = tick;
  }

  void check(const Use& before, int64_t stream, const char* name, const char* does, const char* did) {
    TORCH_CHECK(before.tick <= clocks_[stream][before.stream], "race on the device: ", name, " on stream ", stream, " ",
                does, " memory that ", before.name, " on stream ", before.stream, " ", did,
                ", and nothing orders the one before the other");
  }

  static void finish(Copy& copy) {
    if (copy.is_download) {
      copy.host.copy_(copy.bytes);
      return;
    }
    TORCH_CHECK(at::equal(copy.host, copy.bytes) || !at::equal(copy.bytes, copy.bytes),
                "the host has changed pinned memory (", copy.host.sizes(), ") while it was copied to the device");
  }

  std::mutex mutex_;
  std::map<int64_t, Clock> clocks_;
  std::map<int64_t, uint64_t> ticks_;
  std::map<int64_t, Uses> freed_;  // by the stream whose allocations may take the memory
  std::deque<Copy> copies_;
};

}  // namespace sim
