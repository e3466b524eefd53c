// A device whose memory is the host's and whose operations are the CPU's. As on a GPU, an operation refuses tensors and
// generators of both, so that whatever was left on the CPU is found on a machine without a GPU.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {
using at::IntArrayRef;
using at::Tensor;
using std::optional;
constexpr auto kThere = c10::DeviceType::PrivateUse1;
const c10::Device there(kThere, 0);
const c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);

// ---- what torch asks of every device -----------------------------------------------------------------

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {data, data, &std::free, there};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} memory;
REGISTER_ALLOCATOR(kThere, &memory);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kThere> {
  c10::Device getDevice() const override { return there; }
  c10::Device exchangeDevice(c10::Device) const override { return there; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, there); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, there); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Draws what the CPU's generator draws, which takes it only while it is lent.
struct Draws final : at::CPUGeneratorImpl {
  explicit Draws(uint64_t seed) : at::CPUGeneratorImpl(seed) { device_ = there; }
  void lend(c10::Device device) { device_ = device; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  at::Device getDeviceFromPtr(void*) const override { return there; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Draws>(0); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = memory.allocate(bytes);
    std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
} hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// ---- tensors here and there --------------------------------------------------------------------------

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>, optional<at::Device>,
             optional<bool>, optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, key, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<at::Device>, optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, key, c10::dtype_or_default(dtype));
}

bool is_there(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kThere; }

// The same memory as a tensor of the CPU; one without elements is new, so that it can be resized.
Tensor here(const Tensor& tensor) {
  if (!is_there(tensor)) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  if (to.numel()) here(to).copy_(here(self));
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

Tensor over_there(const Tensor& tensor) {
  if (!tensor.defined() || is_there(tensor)) return tensor;
  return copy_from(tensor, empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, {}, {}), false);
}

void check_devices(const std::string& name, at::ArrayRef<Tensor> tensors) {
  bool some = false, others = false;
  for (const auto& tensor : tensors) {
    some |= is_there(tensor);
    others |= tensor.defined() && !is_there(tensor) && tensor.dim() > 0;
  }
  TORCH_CHECK(!(some && others), name, ": expected all tensors to be on one device, but found ", there, " and cpu");
}

// ---- operations --------------------------------------------------------------------------------------

Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef more, int64_t groups) {
  check_devices("convolution", {input, weight, bias.value_or(Tensor())});
  return over_there(at::convolution(here(input), here(weight), bias ? here(*bias) : Tensor(), stride, padding, dilation,
                                    transposed, more, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef more, int64_t groups, std::array<bool, 3> mask) {
  check_devices("convolution_backward", {gradient, input, weight});
  auto [inputs, weights, biases] =
      at::convolution_backward(here(gradient), here(input), here(weight), IntArrayRef(gradient.size(1)), stride, padding,
                               dilation, transposed, more, groups, mask);
  return {over_there(inputs), over_there(weights), over_there(biases)};
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// All others: the arguments' memory is given to the CPU's operation, and what it returns is copied.
void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto begin = stack->size() - schema.arguments().size();
  const std::vector<c10::IValue> given(stack->begin() + begin, stack->end());
  std::vector<Tensor> tensors;
  for (const auto& value : given) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) for (const auto& tensor : value.toTensorVector()) tensors.push_back(tensor);
  }
  check_devices(schema.name(), tensors);  // indices, an optional list, may be the CPU's, as for a GPU
  Draws* lent = nullptr;
  for (size_t place = begin; place < stack->size(); ++place) {
    auto& value = (*stack)[place];
    if (value.isTensor()) {
      value = here(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = here(tensor);
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<optional<Tensor>> list;
      for (optional<Tensor> tensor : value.toOptionalTensorList()) {
        list.push_back(tensor ? optional<Tensor>(here(*tensor)) : std::nullopt);
      }
      value = list;
    } else if (value.isGenerator()) {
      lent = dynamic_cast<Draws*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(lent, schema.name(), ": expected a generator of ", there, ", but found one of the cpu");
      lent->lend(c10::kCPU);
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    }
  }
  const std::vector<c10::IValue> used(stack->begin() + begin, stack->end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (lent) lent->lend(there);
  for (size_t i = 0; i < given.size(); ++i) {  // what was written to may have been resized
    if (!is_written(schema.arguments()[i]) || !given[i].isTensor() || !is_there(given[i].toTensor())) continue;
    const auto &to = given[i].toTensor(), &from = used[i].toTensor();
    if (to.sizes() != from.sizes()) to.resize_(from.sizes());
    if (to.numel() && to.data_ptr() != from.data_ptr()) copy_from(from, to, false);
  }
  const auto first = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    auto& value = (*stack)[first + i];
    if (value.isTensor() && is_written(schema.returns()[i])) {
      for (size_t j = 0; j < given.size(); ++j) {
        if (used[j].isTensor() && used[j].toTensor().is_same(value.toTensor())) value = given[j];
      }
    } else if (value.isTensor()) {
      value = over_there(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = over_there(tensor);
      value = list;
    }
  }
}
}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }
