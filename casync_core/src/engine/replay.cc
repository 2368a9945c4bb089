#include <deque>
#include <iterator>

#include "casync/error.hpp"
#include "coordinator/make_policy.hpp"
#include "engine/event_log.hpp"
#include "engine/log_record.hpp"

namespace casync {
namespace {

/// The records of a log, one after the other.
class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw InvalidArgument(detail::concat("the event log ", path, " cannot be read"));
    const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
    const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
    content_.assign(bytes, bytes + content.size());
  }

  /// The next record; empty at the end, or where the last one was cut short.
  std::span<const std::byte> next() {
    ByteReader reader(std::span<const std::byte>(content_).subspan(at_));
    if (reader.left() < sizeof(std::uint32_t)) return {};
    const auto length = reader.get<std::uint32_t>();
    if (reader.left() < length) return {};
    at_ += sizeof(length) + length;
    return reader.take(length);
  }

 private:
  std::vector<std::byte> content_;
  std::size_t at_ = 0;
};

/// What an event or a decide led to, as logged.
struct Expected {
  std::deque<std::span<const std::byte>> answers;
  std::deque<log::Trace> actions;
};

/// Answers as the Planning of the log did.
class LoggedPlanning final : public Planning {
 public:
  explicit LoggedPlanning(Expected& expected) : expected_(expected) {}

  std::vector<std::string> define(const std::string&, const Signature&) override {
    return answer<std::vector<std::string>>(log::Question::define, log::get_codecs);
  }
  bool measuring() const override {
    return !expected_.answers.empty() && question(expected_.answers.front()) == log::Question::costs;
  }
  std::optional<std::vector<std::byte>> costs(const Signature&, std::uint32_t) override {
    return answer<std::optional<log::Bytes>>(log::Question::costs, log::get_costs);
  }
  GradientPlan plan(const std::string&, const Signature&, std::uint32_t) override {
    return answer<std::optional<GradientPlan>>(log::Question::plan, log::get_answered_plan).value_or(GradientPlan{});
  }
  std::optional<GradientPlan> re_plan(const std::string&, const Signature&, const GradientPlan&,
                                      std::uint32_t) override {
    return answer<std::optional<GradientPlan>>(log::Question::re_plan, log::get_answered_plan);
  }
  /// A question that the logged Engine did not ask here.
  const std::string& surprise() const { return surprise_; }

 private:
  static log::Question question(std::span<const std::byte> record) { return ByteReader(record).get<log::Question>(); }

  template <typename Answer>
  Answer answer(log::Question wanted, Answer (*get)(ByteReader&)) {
    if (expected_.answers.empty() || question(expected_.answers.front()) != wanted) {
      surprise_ = detail::concat("the Engine asks its planning question ", static_cast<int>(wanted),
                                 ", which it did not ask here");
      return {};
    }
    ByteReader reader(expected_.answers.front());
    expected_.answers.pop_front();
    reader.get<log::Question>();
    return get(reader);
  }

  Expected& expected_;
  std::string surprise_;
};

/// Holds every action against the log.
class Comparison final : public ActionSink {
 public:
  explicit Comparison(Expected& expected) : expected_(expected) {}

  void emit(const Action& action) override {
    ++count_;
    if (!difference_.empty()) return;
    const log::Trace found = log::trace_of(action, action.value);
    if (expected_.actions.empty()) {
      if (more_.empty()) more_ = "the Engine does more than in the log: " + log::describe(found);
      return;
    }
    if (!(expected_.actions.front() == found)) {
      difference_ = detail::concat("the log has ", log::describe(expected_.actions.front()), "\nthe Engine does ",
                                   log::describe(found));
    }
    expected_.actions.pop_front();
  }
  /// The log holds all that a cause led to.
  void finish() {
    if (difference_.empty()) difference_ = more_;
    if (difference_.empty() && !expected_.actions.empty()) {
      difference_ = "the Engine does less than in the log: " + log::describe(expected_.actions.front());
    }
  }
  const std::string& difference() const { return difference_; }
  std::uint64_t count() const { return count_; }

 private:
  Expected& expected_;
  std::uint64_t count_ = 0;
  std::string difference_;
  std::string more_;
};

}  // namespace

Replay replay(const std::string& path) {
  Reader records(path);
  ByteReader header(records.next());
  if (header.left() < 16 || header.get<std::uint64_t>() != log::kMagic)
    throw CorruptPayload(detail::concat(path, " is not an event log"));
  if (const auto version = header.get<std::uint32_t>(); version != log::kVersion) {
    throw CorruptPayload(
        detail::concat(path, " is an event log of version ", version, "; this is version ", log::kVersion));
  }
  const std::string coordinator = header.get_text();
  EngineOptions options = log::get_options(header);
  const auto member = static_cast<std::uint16_t>(options.member);
  const auto members = static_cast<std::uint16_t>(options.host_of.size());

  Expected expected;
  auto planning = std::make_unique<LoggedPlanning>(expected);
  const LoggedPlanning& answers = *planning;
  Comparison comparison(expected);
  Engine engine(std::move(options), make_policy(coordinator, member, members), std::move(planning));

  Replay result;
  auto record = records.next();
  while (!record.empty() && result.difference.empty()) {
    // A cause and, up to the next cause, what it led to.
    ByteReader cause(record);
    const auto kind = cause.get<log::Record>();
    expected = {};
    for (record = records.next(); !record.empty(); record = records.next()) {
      ByteReader reader(record);
      const auto effect = reader.get<log::Record>();
      if (effect == log::Record::answer) {
        expected.answers.push_back(reader.take(reader.left()));
      } else if (effect == log::Record::action) {
        expected.actions.push_back(reader.get<log::Trace>());
      } else {
        break;
      }
    }
    Nanoseconds now = 0;
    std::string what;
    try {
      if (kind == log::Record::event) {
        const Event event = log::get_event(cause, now);
        what = detail::concat("event ", static_cast<int>(event.kind));
        engine.apply(event, now, comparison);
      } else {
        now = log::get_time(cause);
        what = "decide";
        engine.decide(now, comparison);
      }
    } catch (const Error&) {                 // as in the log, where the abort that follows is an event of its own
    } catch (const std::exception& error) {  // what no event of a real engine leads to
      result.difference = detail::concat("record ", result.events + 1, " (", what, "): ", error.what());
      break;
    }
    ++result.events;
    const bool cut = record.empty();  // what the last cause led to may not have been written any more
    if (!cut) comparison.finish();
    const std::string& difference = cut || answers.surprise().empty() ? comparison.difference() : answers.surprise();
    if (!difference.empty()) {
      result.difference = detail::concat("record ", result.events, " (", what, " at ", static_cast<double>(now) * 1e-9,
                                         " s): ", difference);
    }
  }
  result.actions = comparison.count();
  return result;
}

}  // namespace casync
