// Everything that is read from bytes of another rank or of a file, apart: control messages, plans, signatures, costs,
// the events of a log, and the texts they carry. A reader throws CorruptPayload, a reader of a user's text
// InvalidArgument; what is read is what was written. An input is any number of such texts.
#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "engine/control.hpp"
#include "input.hpp"
#include "plan/plan_wire.hpp"
#include "planner/cost/measurements.hpp"
#include "planner/cost/world.hpp"
#include "planner/search/request.hpp"
#include "record/log_record.hpp"

namespace casync::fuzz {
namespace {

/// Written again, `value` is the beginning of what it was read from.
template <typename T>
void require_written_again(const T& value, std::span<const std::byte> from) {
  Bytes again;
  using log::put;  // and casync's own, by its argument
  put(again, value);
  require(again.size() <= from.size() && std::equal(again.begin(), again.end(), from.begin()),
          "what is read is what was written");
}

/// `user` reads a text that a user wrote.
template <typename User>
void read_text(const User& user) {
  try {
    user();
  } catch (const InvalidArgument&) {
  }
}

void read_signature_texts(const std::string& name, const Signature& signature) {
  const World world({0, 0, 1});
  const CostTable costs;
  read_text([&] { static_cast<void>(parse_request({name, signature, world, costs, {}, {}})); });
}

void read_control(std::span<const std::byte> message) {
  switch (kind_of(message)) {
    case ControlKind::request: {
      const Request request = get_request(message);
      require_written_again(request, message);
      read_signature_texts(request.name, request.signature);
      break;
    }
    case ControlKind::ready:
      require_written_again(get_ready(message), message);
      break;
    case ControlKind::agreement: {
      const Agreement agreement = get_agreement(message);
      require_written_again(agreement, message);
      read_text([&] { static_cast<void>(make_codec(agreement.plan.codec)); });
      break;
    }
    case ControlKind::start:
      require_written_again(get_start(message), message);
      break;
    case ControlKind::refusal:
      require_written_again(get_refusal(message), message);
      break;
    case ControlKind::submit_for_joined:
      require_written_again(get_submit_for_joined(message), message);
      break;
    case ControlKind::credit:
      require_written_again(get_credit(message), message);
      break;
    case ControlKind::links:
      require_written_again(get_links(message), message);
      break;
    case ControlKind::costs:
      require_written_again(get_costs(message), message);
      static_cast<void>(get_measured_costs(get_costs(message).bytes));
      break;
    case ControlKind::abort:
      require_written_again(get_abort(message), message);
      break;
    case ControlKind::moves:
      require_written_again(get_moves(message), message);
      break;
    case ControlKind::ping:
    case ControlKind::pong:
    case ControlKind::bye:
      break;
  }
}

void read_event(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Nanoseconds now = 0;
  log::Stored stored;
  const Event event = log::get_event(reader, now, stored);
  Bytes again;
  log::put(again, event, now);
  require(again.size() <= bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()),
          "an event that is read is what was written");
}

void test_one(Input& input) {
  const std::size_t kind = input.below(8);
  const auto bytes = input.take(input.get<std::uint16_t>());
  const std::string text(text_of(bytes));
  try {
    ByteReader reader(bytes);
    switch (kind) {
      case 0:
        require_written_again(get_plan(reader), bytes);
        break;
      case 1:
        require_written_again(get_signature(reader), bytes);
        break;
      case 2:
        read_text([&] { static_cast<void>(make_codec(text)); });
        break;
      case 3:
        read_text([&] { static_cast<void>(parse_auto(text)); });
        break;
      case 4:
      case 5:
        read_control(bytes);
        break;
      case 6:
        require_written_again(log::get_options(reader), bytes);
        break;
      default:
        read_event(bytes);
    }
  } catch (const CorruptPayload&) {
  }
}

}  // namespace
}  // namespace casync::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (casync::fuzz::Input input{data, size}; input.left() > 0;) casync::fuzz::test_one(input);
  return 0;
}
