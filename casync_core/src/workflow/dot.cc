#include <sstream>

#include "casync/workflow.hpp"

namespace casync {
namespace {

std::string label_of(const Task& task) {
  std::ostringstream out;
  out << name_of(task.primitive);
  if (task.encode_to.place != Place::none && task.primitive == Primitive::merge) out << "+encode";
  out << " p" << task.partition;
  if (task.primitive == Primitive::send) out << " -> " << task.peer;
  if (task.primitive == Primitive::recv) out << " <- " << task.peer;
  return out.str();
}

}  // namespace

std::string to_dot(const Workflow& workflow) {
  std::ostringstream out;
  out << "digraph workflow {\n  rankdir=LR;\n";
  for (std::size_t i = 0; i < workflow.tasks.size(); ++i) {
    const Task& task = workflow.tasks[i];
    const bool communicates = task.primitive == Primitive::send || task.primitive == Primitive::recv;
    out << "  t" << i << " [label=\"" << label_of(task) << "\", shape=" << (communicates ? "ellipse" : "box") << "];\n";
    for (std::uint32_t s = 0; s < task.successor_count; ++s) {
      out << "  t" << i << " -> t" << workflow.successors[task.first_successor + s] << ";\n";
    }
  }
  out << "}\n";
  return out.str();
}

}  // namespace casync
