#include "session/stand_ins.hpp"

#include <algorithm>
#include <utility>

namespace casync {

Operation& StandIns::add(const Definition& definition) {
  StandIn& one = running_.emplace_back();
  const Signature& signature = definition.signature;
  one.memory.resize(static_cast<std::size_t>(signature.shape.numel()) * size_of(signature.dtype));
  one.operation.definition = &definition;
  one.operation.input = one.operation.output = one.memory.data();
  one.operation.stands_in = true;
  return one.operation;
}

void StandIns::ended(Operation& operation) {
  const auto at = std::ranges::find(running_, &operation, [](const StandIn& one) { return &one.operation; });
  if (operation.status == Status::ok) {
    running_.erase(at);
  } else {
    interrupted_.splice(interrupted_.end(), running_, at);
  }
}

Operation* StandIns::take_join() { return running_.empty() ? std::exchange(join_, nullptr) : nullptr; }

}  // namespace casync
