#include "modules.hpp"

#include <dlfcn.h>

#include <vector>

#include "lockstep_kernel.hpp"
#include "memory.hpp"

namespace standin::modules {

using casync::codec::cuda::LockstepKernel;

struct Module {
  explicit Module(void* opened) : library(opened) {}
  ~Module() { dlclose(library); }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  void* library;
};

struct Function {
  std::shared_ptr<Module> module;
  const LockstepKernel* kernel;
};

namespace {

/// Where the host finds what a kernel's pointer means. `well`: if given, false is noted of memory that is not there.
void to_bytes(void* well, void** pointer) {
  const auto address = reinterpret_cast<std::uint64_t>(*pointer);
  if (!memory::is_device(address)) return;
  if (memory::holds(address, 1)) {
    *pointer = memory::bytes_of(address);
  } else if (well != nullptr) {
    *static_cast<bool*>(well) = false;
  }
}

}  // namespace

std::shared_ptr<Module> load(const std::string& path) {
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return opened == nullptr ? nullptr : std::make_shared<Module>(opened);
}

std::shared_ptr<Function> find(const std::shared_ptr<Module>& module, const char* name) {
  const auto* const kernel = static_cast<const LockstepKernel*>(dlsym(module->library, name));
  return kernel == nullptr ? nullptr : std::make_shared<Function>(Function{module, kernel});
}

std::function<void()> bind(const std::shared_ptr<Function>& function, int blocks, int teams, int threads,
                           bool cooperative, void** arguments) {
  const LockstepKernel& kernel = *function->kernel;
  const bool fits = kernel.wide ? cooperative || blocks == 1 : teams == 1 && !cooperative;
  if (threads != kernel.threads || !fits) return {};
  const int run = kernel.wide ? teams : blocks;
  const auto* const given = static_cast<const std::byte*>(arguments[0]);
  auto copied = std::make_shared<std::vector<std::byte>>(given, given + kernel.argument_bytes);
  bool is_well = true;
  kernel.visit(copied->data(), &is_well, to_bytes);
  if (!is_well) return {};
  return [function, copied, run] { function->kernel->run(copied->data(), run, nullptr, to_bytes); };
}

}  // namespace standin::modules
