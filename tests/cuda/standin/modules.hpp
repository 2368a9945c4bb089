#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

/// Device code of the stand-in: a shared object of the host, whose kernels run in lockstep (tests/compll/cuda). What is
/// loaded in the place of a cubin is the name of its file.
namespace standin::modules {

struct Module;
struct Function;

/// Null: there is no such file.
std::shared_ptr<Module> load(const std::string& path);
/// Null: it has no such kernel.
std::shared_ptr<Function> find(const std::shared_ptr<Module>& module, const char* name);

/// A launch with the arguments that it was given, for a stream to run. Empty if a pointer among them is to memory of a
/// device that is not allocated, or if the grid is not what the kernel was made for: teams of several blocks wait for
/// each other.
std::function<void()> bind(const std::shared_ptr<Function>& function, int blocks, int teams, int threads,
                           bool cooperative, void** arguments);

}  // namespace standin::modules
