#include "engine/event.hpp"

#include <array>

#include "casync/error.hpp"
#include "common/crc32c.hpp"

namespace casync {
namespace {

/// "12 bytes with checksum 7".
std::string shown(std::span<const std::byte> bytes) {
  return detail::concat(bytes.size(), " bytes with checksum ", crc32c(bytes));
}

}  // namespace

std::string_view name_of(const Event& event) {
  constexpr std::array<std::string_view, std::variant_size_v<Event>> kNames{
      "define",  "submit",   "control",     "arrived", "ran",           "sent",     "received", "peer_down",
      "give_up", "shutdown", "costs_known", "planned", "plans_changed", "launched", "flowed",   "forget"};
  return kNames[event.index()];
}

std::string describe(const Action& action) {
  using detail::concat;
  return std::visit(
      Overloads{
          [](const action::Begin& a) {
            return concat("begin {instance ", a.instance, ", handle ", a.handle, ", op ", a.op, ", sequence ",
                          a.sequence, ", step ", a.step, ", codec ", a.plan.codec, ", ", a.plan.topology,
                          ", partitions ", a.plan.partitions, a.by_lane ? ", by the lane}" : "}");
          },
          [](const action::Reserve& a) {
            return concat("reserve {instance ", a.instance, ", partition ", a.partition, "}");
          },
          [](const action::Run& a) {
            std::string text = concat("run {", name_of(a.where));
            for (const auto& [instance, task] : a.batch) text += concat(", instance ", instance, " task ", task);
            return text + "}";
          },
          [](const action::Send& a) {
            return concat("send {instance ", a.instance, ", task ", a.task, ", peer ", a.peer, ", op ", a.key.op,
                          ", sequence ", a.key.sequence, ", tag ", a.key.tag, ", ", name_of(a.way), "}");
          },
          [](const action::SendBulk& a) { return concat("send_bulk {peer ", a.peer, ", ", a.messages, " messages}"); },
          [](const action::Accept& a) {
            return concat("accept {instance ", a.instance, ", task ", a.task, ", cookie ", a.message_id, "}");
          },
          [](const action::Drop& a) { return concat("drop {cookie ", a.message_id, "}"); },
          [](const action::Release& a) {
            return concat("release {instance ", a.instance, ", partition ", a.partition, "}");
          },
          [](const action::Finish& a) {
            std::string how = a.failure == nullptr ? std::string("done") : concat("failed: ", a.failure->text);
            if (a.nonfinite) how += ", not finite";
            return concat("finish {instance ", a.instance, ", handle ", a.handle, ", ", how, "}");
          },
          [](const action::Control& a) { return concat("control {peer ", a.peer, ", ", shown(a.message), "}"); },
          [](const action::Report& a) { return concat("report {", a.stall.text, "}"); },
          [](const action::PlanWanted& a) {
            std::string text = "plan_wanted {";
            for (const auto& wanted : a.gradients) {
              text += concat("op ", wanted.op, ", tensor ", wanted.name, ", step ", wanted.step, "; ");
            }
            return text + "}";
          },
          [](const action::CostsOf& a) { return concat("costs_of {member ", a.member, ", ", shown(a.costs), "}"); },
          [](const action::StandInFor& a) { return concat("stand_in_for {", a.definition.name, "}"); }},
      action);
}

}  // namespace casync
