#include "executor/virtual/stream.hpp"

#include <algorithm>
#include <cstring>

#include "executor/memory/tensor_sizes.hpp"

namespace casync {
namespace {

class Floats final : public FarFloats {
 public:
  explicit Floats(std::span<const float> values) : values_(values.begin(), values.end()) {}
  float* data() override { return values_.data(); }
  std::size_t size() const override { return values_.size(); }
  FloatArray copy() const override { return values_; }

 private:
  FloatArray values_;
};

VirtualWorkers::Options in_order(VirtualWorkers::Options options) {
  options.in_order = true;
  return options;
}

}  // namespace

VirtualStream::VirtualStream(Agenda& agenda, VirtualWorkers::Options options, std::function<void()> news)
    : processor_(agenda, in_order(std::move(options)), std::move(news)) {}

bool VirtualStream::supports(const TaskGraph& graph, const Signature& /*signature*/, bool by_lane) const {
  return !graph.codec->info().identity && !graph.host_only && (by_lane || graph.sends_slots_only);
}

std::unique_ptr<FarFloats> VirtualStream::send(std::span<const float> values, bool /*must*/) {
  return std::make_unique<Floats>(values);
}

std::vector<std::byte> VirtualStream::look(const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  return {from, from + bytes};
}

void VirtualStream::fetch(Operation& operation) {
  const std::size_t bytes = raw_bytes_of(operation);
  Fetched& fetched = fetched_[&operation];
  fetched.result = operation.output;
  const auto* const from = static_cast<const std::byte*>(operation.input);
  fetched.input.assign(from, from + bytes);
  if (operation.output != operation.input) fetched.output.resize(bytes);
  operation.output = operation.output == operation.input ? fetched.input.data() : fetched.output.data();
  operation.input = fetched.input.data();
  operation.fetched = true;
}

void VirtualStream::restore(Operation& operation) {
  const auto at = fetched_.find(&operation);
  const void* const output = operation.output;
  operation.input = operation.output = at->second.result;
  operation.fetched = false;
  if (operation.status == Status::ok) {
    std::memcpy(operation.output, output, raw_bytes_of(operation));
  } else {
    interrupted_.push_back(std::move(at->second));
  }
  fetched_.erase(at);
}

}  // namespace casync
