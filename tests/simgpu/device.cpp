// A simulated accelerator for tests: PyTorch's PrivateUse1 device on host memory, computed by the CPU's kernels.
//
// One boxed fallback refuses operands of two devices, counts, and calls the CPU's kernel on aliases of the operands.
// Work is done when it is asked for; what streams and events say about its order is checked (streams.h).
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <unordered_map>
#include <unordered_set>

#include "memory.h"

namespace sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

std::mutex names_mutex;
std::unordered_map<std::string, int64_t> by_name;  // kernels

void count_kernel(const std::string& name, int64_t bytes) {
  counts.kernels++;
  counts.kernel_bytes += bytes;
  std::lock_guard<std::mutex> hold(names_mutex);
  by_name[name]++;
}

bool is_device(const Tensor& t) {
  return t.defined() && t.device().type() == kType;
}

// That memory is used by the kernel that the current stream has begun.
void use(const c10::Storage& storage, bool is_write, const char* name, int64_t stream = current_stream) {
  void* block = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context();
  if (block) Order::get().use(static_cast<Block*>(block)->history, stream, is_write, name);
}

// The host has waited for all that the current stream was asked for.
void host_waits() {
  Order::get().wait(kHost, Order::get().clock_of(current_stream));
}

c10::Storage alias_of(const c10::Storage& storage) {
  void* data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  c10::DataPtr bytes(data ? Arena::get().real(data) : nullptr, c10::Device(c10::DeviceType::CPU));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                           std::move(bytes), c10::GetAllocator(c10::kCPU), true));
}

Tensor over(const c10::Storage& storage, const Tensor& like, c10::DispatchKey key) {
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return t;
}

// The aliases of one call: tensors that share memory have aliases that do.
struct Aliases {
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;  // of the device, of the host
  std::vector<std::pair<Tensor, Tensor>> tensors;
  int64_t bytes = 0;
  const char* name;

  explicit Aliases(const char* name) : name(name) {
    Order::get().begin(current_stream);
  }

  Tensor of(const Tensor& t, bool is_write = false) {
    bytes += t.nbytes();
    if (t.numel()) use(t.storage(), is_write, name);
    const c10::Storage* host = nullptr;
    for (auto& [device, alias] : storages)
      if (device.is_alias_of(t.storage())) host = &alias;
    if (!host) {
      storages.emplace_back(t.storage(), alias_of(t.storage()));
      host = &storages.back().second;
    }
    tensors.emplace_back(t, over(*host, t, c10::DispatchKey::CPU));
    return tensors.back().second;
  }

  // The device's tensor for a result of the CPU's kernel.
  Tensor back(const Tensor& result) {
    if (!result.defined() || result.device().type() != c10::DeviceType::CPU) return result;
    for (auto& [device, alias] : tensors)
      if (alias.is_same(result)) return device;
    for (auto& [device, alias] : storages)
      if (alias.is_alias_of(result.storage())) return over(device, result, c10::DispatchKey::PrivateUse1);
    const size_t nbytes = result.storage().nbytes();
    c10::Storage own(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                          device_allocator.allocate(nbytes), &device_allocator, true));
    if (nbytes)
      std::memcpy(Arena::get().real(own.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()),
                  result.storage().data(), nbytes);
    bytes += result.nbytes();
    use(own, true, name);
    return over(own, result, c10::DispatchKey::PrivateUse1);
  }

  // An output that the kernel gave another size.
  void take_sizes() {
    for (auto& [device, alias] : tensors) {
      if (device.sizes() == alias.sizes() && device.strides() == alias.strides()) continue;
      device.resize_(alias.sizes());
      device.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      std::memcpy(Arena::get().real(device.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()),
                  alias.storage().data(), std::min(device.storage().nbytes(), alias.storage().nbytes()));
    }
  }
};

const at::Generator& host_generator(const IValue& wanted);

// Kernels whose result has a size that only the device knows, or is a number: the host waits for them.
const std::unordered_set<std::string> kWaits = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::equal",   "aten::bincount",      "aten::_unique",  "aten::repeat_interleave"};
// They take positions from the host, and upload them first.
const std::unordered_set<std::string> kIndexing = {"aten::index", "aten::index_put_", "aten::_index_put_impl_",
                                                   "aten::index_put"};

void check_devices(const std::string& name, const std::vector<Tensor>& operands) {
  const Tensor* device = nullptr;
  for (auto& t : operands)
    if (is_device(t)) device = &t;
  if (!device) return;
  for (auto& t : operands) {
    const bool is_host = t.defined() && t.device().type() == c10::DeviceType::CPU;
    // A host tensor without dimensions is an argument of the kernel, as on every device.
    TORCH_CHECK(!is_host || t.dim() == 0 || kIndexing.count(name), name,
                ": expected all tensors to be on the same device, but found ", device->device(), " (", device->sizes(),
                ") and cpu (", t.sizes(), ")");
    TORCH_CHECK(!is_device(t) || t.device() == device->device(), name, ": tensors of two devices, ", t.device(), " and ",
                device->device());
    if (is_host && t.dim() > 0) {
      counts.uploads++;
      counts.upload_bytes += t.nbytes();
      tell("upload", name.c_str());
    }
    // aten::index has found the positions of a mask before; one value is put by a mask without looking for them.
    if (name == "aten::_index_put_impl_" && &t != &operands.front() && &t != &operands.back() && is_device(t) &&
        t.scalar_type() == at::kBool && operands.back().numel() > 1)
      tell("nonzero", name.c_str());
  }
}

void collect(const IValue& value, std::vector<Tensor>& operands) {
  if (value.isTensor()) operands.push_back(value.toTensor());
  else if (value.isTensorList() || value.isOptionalTensorList())
    for (auto& each : value.toListRef()) collect(each, operands);
}

IValue to_host(const IValue& value, Aliases& aliases, bool is_write) {
  if (value.isTensor()) return is_device(value.toTensor()) ? IValue(aliases.of(value.toTensor(), is_write)) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(is_device(t) ? aliases.of(t, is_write) : t);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& t : value.toOptionalTensorVector())
      list.push_back(t.has_value() && is_device(*t) ? std::optional<Tensor>(aliases.of(*t)) : t);
    return list;
  }
  if (value.isDevice()) return value.toDevice().type() == kType ? IValue(c10::Device(c10::kCPU)) : value;
  return value;
}

IValue to_device(const IValue& value, Aliases& aliases) {
  if (value.isTensor()) return aliases.back(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<Tensor> list;
  for (const Tensor& t : value.toTensorVector()) list.push_back(aliases.back(t));
  return list;
}

bool writes(const c10::Argument& argument) {
  const c10::AliasInfo* info = argument.alias_info();
  if (!info) return false;
  if (info->isWrite()) return true;
  for (auto& inner : info->containedTypes())
    if (inner.isWrite()) return true;
  return false;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  std::vector<Tensor> operands;
  for (size_t i = first; i < stack->size(); i++) collect((*stack)[i], operands);
  check_devices(name, operands);
  Aliases aliases(name.c_str());
  for (size_t i = 0; i < count; i++) {
    IValue& value = (*stack)[first + i];
    const auto& type = schema.arguments()[i].type();
    const bool is_generator = type->str().find("Generator") != std::string::npos;
    value = is_generator && (value.isNone() || value.toGenerator().device().type() == kType)
        ? IValue(host_generator(value))
        : to_host(value, aliases, writes(schema.arguments()[i]));
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  aliases.take_sizes();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
    (*stack)[i] = to_device((*stack)[i], aliases);
  count_kernel(name, aliases.bytes);
  if (kWaits.count(name)) {
    host_waits();
    tell(name.c_str() + 6, name.c_str());
  }
}

// Kernels of our own

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// Between pinned memory and the device, without waiting: see Copy.
void copy_later(const Tensor& source, const Tensor& target, bool is_download) {
  const Tensor host = is_download ? target : source;
  const Clock clock = Order::get().clock_of(current_stream);
  const Tensor coming = is_download ? Tensor() : Order::get().coming(source, current_stream);
  const Tensor bytes =
      is_download ? at::empty_like(target).copy_(source) : (coming.defined() ? coming : source).clone();
  if (is_download && target.is_contiguous()) std::memset(target.data_ptr(), kPoison, target.nbytes());
  if (!is_download) target.copy_(bytes);
  Order::get().add_copy({current_stream, clock.at(current_stream), host, bytes, is_download});
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Aliases aliases("aten::copy_");
  Tensor source = is_device(from) ? aliases.of(from) : from;
  Tensor target = is_device(to) ? aliases.of(to, true) : to;
  const bool is_pinned = is_device(from) != is_device(to) && (is_device(to) ? from : to).is_pinned();
  if (non_blocking && is_pinned) copy_later(source, target, is_device(from));
  else target.copy_(source);
  if (is_device(from) != is_device(to) && !(non_blocking && (is_pinned || is_device(to)))) host_waits();
  if (is_device(from) && is_device(to)) {
    count_kernel("aten::copy_", aliases.bytes);
  } else if (is_device(to)) {
    counts.uploads++;
    counts.upload_bytes += to.nbytes();
    tell(!non_blocking ? "upload" : is_pinned ? "upload_pinned" : "upload_pageable", "aten::copy_");
  } else {
    counts.downloads++;
    counts.download_bytes += to.nbytes();
    tell(non_blocking && is_pinned ? "download_pinned" : "download", "aten::copy_");
  }
  return to;
}

at::Scalar local_scalar_dense(const Tensor& self) {
  Aliases aliases("item");
  counts.downloads++;
  counts.download_bytes += self.nbytes();
  const Tensor host = aliases.of(self);
  host_waits();
  tell("item", "aten::_local_scalar_dense");
  return at::_local_scalar_dense(host);
}

void resize_bytes(c10::StorageImpl* storage, size_t nbytes) {
  Order::get().begin(current_stream);
  c10::DataPtr fresh = device_allocator.allocate(nbytes);
  const auto block = [](const c10::DataPtr& data) { return static_cast<Block*>(data.get_context()); };
  if (block(storage->_mutable_data_ptr_no_checks()))
    Order::get().use(block(storage->_mutable_data_ptr_no_checks())->history, current_stream, false, "resize_");
  if (nbytes) Order::get().use(block(fresh)->history, current_stream, true, "resize_");
  const size_t kept = std::min(nbytes, storage->nbytes());
  void* old = storage->_mutable_data_ptr_no_checks().get();
  if (kept) std::memcpy(Arena::get().real(fresh.get()), Arena::get().real(old), kept);
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(nbytes);
}

void fit(c10::TensorImpl* self) {
  const size_t end = self->numel() == 0
      ? 0
      : at::detail::computeStorageNbytes(self->sizes(), self->strides(), self->dtype().itemsize(),
                                         self->storage_offset());
  c10::StorageImpl* storage = self->unsafe_storage().unsafeGetStorageImpl();
  if (end > storage->nbytes()) resize_bytes(storage, end);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format.has_value()) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  fit(self.unsafeGetTensorImpl());
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device_type() == kType, "set_: a storage of ", source.device(), " for a tensor of the device");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride, offset);
  fit(impl);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const auto length = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {length}, {});
}

Tensor& set_nothing(Tensor& self) {
  c10::Storage none(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                          device_allocator.allocate(0), &device_allocator, true));
  return set_storage(self, std::move(none), 0, {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  void* block = self.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context();
  if (block) Order::get().record(static_cast<Block*>(block)->history, stream.id());
}

// The composite form on the CPU, which draws the same numbers.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input, at::ones_like(input, at::kBool)};
  Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input * mask.to(input.scalar_type()).div_(1 - p), mask};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  return grad * mask.to(grad.scalar_type()).mul_(scale);
}

// The CPU's choice: its flash kernel where that works.
int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double p,
                         bool causal, std::optional<double> scale, bool gqa) {
  auto host = [](const Tensor& t) {
    return is_device(t) ? over(alias_of(t.storage()), t, c10::DispatchKey::CPU).set_requires_grad(t.requires_grad()) : t;
  };
  return at::_fused_sdp_choice(host(q), host(k), host(v), mask.has_value() ? std::optional(host(*mask)) : mask, p,
                               causal, scale, gqa);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", &set_nothing);
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
  m.impl("record_stream", &record_stream);
}

// One kernel for what the CPU and real devices compute as one: torch takes it apart for a device that it does not know.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using c10::DispatchKey;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    const bool is_explicit = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
    const bool is_composite = is_explicit || op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    const bool is_list = is_explicit && name.name.rfind("aten::_foreach_", 0) == 0;
    if (is_list || (is_composite && op->hasKernelForDispatchKey(DispatchKey::CPU)))
      m.impl((name.name + (name.overload_name.empty() ? "" : "." + name.overload_name)).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

REGISTER_ALLOCATOR(kType, &device_allocator)

}  // namespace
}  // namespace sim

#include "runtime.h"

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sim::choose_attention)
}
