#include "planner/search/request.hpp"

#include <gtest/gtest.h>

#include "casync/error.hpp"

namespace casync {
namespace {

using Specs = std::vector<std::string>;

TEST(ParseAuto, OtherTextIsNoAuto) {
  for (const char* text : {"", "none", "onebit", "automatic", "onebit(auto)"}) EXPECT_FALSE(parse_auto(text)) << text;
}

TEST(ParseAuto, BareAutoNamesNothing) {
  EXPECT_EQ(parse_auto("auto"), Specs{});
  EXPECT_EQ(parse_auto(" auto "), Specs{});
}

TEST(ParseAuto, CommasWithinBracketsBelongToTheCodec) {
  EXPECT_EQ(parse_auto("auto(onebit)"), Specs{"onebit"});
  EXPECT_EQ(parse_auto("auto( onebit , terngrad(bits=4) )"), (Specs{"onebit", "terngrad(bits=4)"}));
  EXPECT_EQ(parse_auto("auto(dgc(ratio=0.1, clip=1), none)"), (Specs{"dgc(ratio=0.1, clip=1)", "none"}));
}

TEST(ParseAuto, WhatCannotBeReadIsRefused) {
  for (const char* text :
       {"auto(", "auto()", "auto(,)", "auto(onebit", "auto(onebit,)", "auto(a))", "auto(a)(b)", "auto((a)"}) {
    EXPECT_THROW(parse_auto(text), InvalidArgument) << text;
  }
}

TEST(ParseAlways, GivesWhatIsMeantWhateverTheSize) {
  EXPECT_EQ(parse_always("always(onebit)"), "onebit");
  EXPECT_EQ(parse_always(" always ( terngrad(bits=4) ) "), "terngrad(bits=4)");
  EXPECT_EQ(parse_always("always(auto(onebit, fp16))"), "auto(onebit, fp16)");
  EXPECT_EQ(parse_always("always(always(onebit))"), "onebit") << "a rule in full for a codec that says so itself";
  for (const char* text : {"", "always", "onebit", "alwaysbit", "auto(always)"})
    EXPECT_FALSE(parse_always(text)) << text;
  for (const char* text : {"always(", "always()", "always( )", "always(onebit", "always(always())"}) {
    EXPECT_THROW(parse_always(text), InvalidArgument) << text;
  }
}

TEST(CheckCompression, EveryCodecOfTheTextMustBeThere) {
  for (const char* text :
       {"none", "onebit", "auto", "auto(onebit, terngrad(bits=4))", "always(fp16)", "always(auto)"}) {
    EXPECT_NO_THROW(check_compression(text)) << text;
  }
  for (const char* text : {"", "twobit", "onebit(x=1)", "auto(onebit, twobit)", "auto(auto)", "always(twobit)",
                           "auto(always(onebit))", "always(auto(twobit))", "always(onebit", "auto("}) {
    EXPECT_THROW(check_compression(text), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace casync
