// Devices, streams, events and random numbers of the simulated device, and the functions that Python calls.
#pragma once

namespace sim {
namespace {

// Random numbers: those that the CPU draws from the same seed, from a state of the device's own.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(at::Generator host)
      : GeneratorImpl(c10::Device(kType, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(host.clone()); }
  at::Generator host;
};

at::Generator new_generator() {
  return at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator());
}

at::Generator& default_generator() {
  static at::Generator generator = new_generator();
  return generator;
}

const at::Generator& host_of(const at::Generator& generator) {
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host;
}

const at::Generator& host_generator(const IValue& wanted) {
  return host_of(wanted.isNone() ? default_generator() : wanted.toGenerator());
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device); }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::holds(data); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_bytes(storage.unsafeGetStorageImpl(), nbytes);
  }
};

std::atomic<int64_t> last_stream{0};

struct EventRecord {
  std::chrono::steady_clock::time_point at;
  Clock clock;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, static_cast<c10::DeviceIndex>(current_device)}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < device_count, "no device ", device, ": there are ", device_count);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, current_stream); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, ++last_stream); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++last_stream); }
  c10::Stream exchangeStream(c10::Stream wanted) const override {
    const c10::Stream before = getStream(wanted.device());
    current_stream = wanted.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventRecord*>(event);
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new EventRecord;
    *static_cast<EventRecord*>(*event) = {std::chrono::steady_clock::now(), Order::get().clock_of(on.id())};
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event) Order::get().wait(waiting.id(), static_cast<EventRecord*>(event)->clock);
  }
  // All work is done at once; who asks knows it then.
  bool queryEvent(void* event) const override {
    if (event) Order::get().wait(kHost, static_cast<EventRecord*>(event)->clock);
    return true;
  }
  bool queryStream(const c10::Stream& on) const override {
    Order::get().wait(kHost, Order::get().clock_of(on.id()));
    return true;
  }
  void synchronizeStream(const c10::Stream& on) const override {
    queryStream(on);
    tell("synchronize", "stream");
  }
  void synchronizeEvent(void* event) const override {
    queryEvent(event);
    tell("synchronize", "event");
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait_for_device("device"); }
  static void wait_for_device(const char* what) {
    Order::get().host_waits_for_all();
    tell("synchronize", what);
  }
  double elapsedTime(void* first, void* last, const c10::DeviceIndex) const override {
    const auto took = static_cast<EventRecord*>(last)->at - static_cast<EventRecord*>(first)->at;
    return std::chrono::duration<double, std::milli>(took).count();
  }

 private:
  static c10::Stream stream(c10::Device device, int64_t id) {
    const auto index = device.index() < 0 ? static_cast<c10::DeviceIndex>(current_device) : device.index();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// A host tensor over the same bytes, for collectives.
Tensor host_alias(const Tensor& self) {
  return over(alias_of(self.storage()), self, c10::DispatchKey::CPU);
}

Tensor rng_state() {
  return Tensor::wrap_tensor_impl(default_generator().unsafeGetGeneratorImpl()->get_state());
}

void set_rng_state(const Tensor& state) {
  default_generator().unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
}

// A collective begins on a stream of its own, behind the current one; returned is what a wait for it is told by.
std::map<int64_t, Clock> begun;
std::mutex begun_mutex;

int64_t begin_collective(at::TensorList read, at::TensorList written, int64_t stream, const std::string& name) {
  static std::set<std::string> names;
  auto& order = Order::get();
  order.wait(stream, order.clock_of(current_stream));
  order.begin(stream);
  std::lock_guard<std::mutex> hold(begun_mutex);
  const char* kept = names.insert(name).first->c_str();
  // The group keeps its tensors until it is done, as NCCL does: their memory is not free before.
  auto touch = [&](const Tensor& t, bool is_write) {
    if (!t.numel()) return;
    use(t.storage(), is_write, kept, stream);
    auto* block = static_cast<Block*>(t.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context());
    if (block) order.record(block->history, stream);
  };
  for (auto& t : read) touch(t, false);
  for (auto& t : written) touch(t, true);
  const auto key = static_cast<int64_t>(begun.size() ? begun.rbegin()->first + 1 : 0);
  begun[key] = order.clock_of(stream);
  return key;
}

void wait_for_collective(int64_t key) {
  std::lock_guard<std::mutex> hold(begun_mutex);
  Order::get().wait(current_stream, begun.at(key));
}

void forget_collective(int64_t key) {
  std::lock_guard<std::mutex> hold(begun_mutex);
  begun.erase(key);
}

TORCH_LIBRARY(simgpu, m) {
  m.def("begin_collective(Tensor[] read, Tensor[] written, int stream, str name) -> int", &begin_collective);
  m.def("wait_for_collective(int key) -> ()", &wait_for_collective);
  m.def("forget_collective(int key) -> ()", &forget_collective);
  m.def("host_alias(Tensor self) -> Tensor");
  m.def("synchronize() -> ()", [] { Guard::wait_for_device("device"); });
  m.def("rng_state() -> Tensor", &rng_state);
  m.def("set_rng_state(Tensor state) -> ()", &set_rng_state);
}

TORCH_LIBRARY_IMPL(simgpu, PrivateUse1, m) {
  m.impl("host_alias", &host_alias);
}

}  // namespace
}  // namespace sim

extern "C" {

void simgpu_start(int devices, void (*on_event)(const char*, const char*)) {
  static sim::Hooks hooks;
  sim::device_count = devices;
  sim::on_event = on_event;
  if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(&hooks);
}

void simgpu_set_capacity(size_t bytes) { sim::capacity = bytes; }

void simgpu_counts(int64_t* into) {
  auto& c = sim::counts;
  int64_t at = 0;
  for (auto* each : {&c.kernels, &c.kernel_bytes, &c.uploads, &c.upload_bytes, &c.downloads, &c.download_bytes,
                     &c.allocated, &c.peak, &c.reserved, &c.allocations})
    into[at++] = each->load();
}

void simgpu_forget_peak() { sim::counts.peak = sim::counts.allocated.load(); }

// Lines "name count", and how many bytes they take; those that fit are written.
size_t simgpu_names(char* into, size_t room) {
  std::lock_guard<std::mutex> hold(sim::names_mutex);
  std::string text;
  for (auto& [name, count] : sim::by_name) text += name + " " + std::to_string(count) + "\n";
  std::memcpy(into, text.data(), std::min(room, text.size()));
  return text.size();
}

void simgpu_seed(uint64_t seed) { sim::default_generator().set_current_seed(seed); }
}
